#include <piper/base/error.h>
#include <piper/schedule/action.h>
#include <piper/schedule/dualpipev.h>
#include <piper/schedule/gpipe.h>
#include <piper/schedule/interleaved.h>
#include <piper/schedule/one_f_one_b.h>
#include <piper/schedule/zb_h1.h>
#include <piper/schedule/zb_v.h>

namespace piper::schedule {

std::vector<Action> actions(strategy::PipelineSchedule schedule, int64_t pp, int64_t rank,
                            int64_t num_micro_batches, int64_t vpp) {
  PIPER_CHECK(rank >= 0 && rank < pp && num_micro_batches >= 1, "rank and micro-batches");
  const bool is_interleaved = strategy::interleaves(schedule);
  PIPER_CHECK(is_interleaved ? vpp >= 1 : vpp == (strategy::is_v(schedule) ? 2 : 1),
              "chunks of a rank");
  switch (schedule) {
    case strategy::PipelineSchedule::kGPipe:
      return gpipe_actions(num_micro_batches);
    case strategy::PipelineSchedule::k1F1B:
      return one_f_one_b_actions(pp, rank, num_micro_batches);
    case strategy::PipelineSchedule::k1F1BPairs:
      return one_f_one_b_actions(pp, rank, num_micro_batches, true);
    case strategy::PipelineSchedule::kInterleaved:
      return interleaved_actions(pp, rank, num_micro_batches, vpp);
    case strategy::PipelineSchedule::kInterleavedPairs:
      return interleaved_actions(pp, rank, num_micro_batches, vpp, true);
    case strategy::PipelineSchedule::kZbH1:
      return zb_h1_actions(pp, rank, num_micro_batches);
    case strategy::PipelineSchedule::kZbV:
      return zb_v_actions(pp, rank, num_micro_batches);
    case strategy::PipelineSchedule::kDualPipeV:
      return dualpipev_actions(pp, rank, num_micro_batches);
  }
  PIPER_CHECK(false, "a schedule without a list");
  return {};
}

void drop_micro_batches_from(std::vector<Action>& actions, int64_t num_micro_batches) {
  const auto is_out = [&](const Action& action) { return action.micro_batch >= num_micro_batches; };
  for (size_t i = 0; i + 1 < actions.size(); ++i)
    if (is_out(actions[i + 1])) actions[i].pairs_with_next = false;
  std::erase_if(actions, is_out);
}

}  // namespace piper::schedule
