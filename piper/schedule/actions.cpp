#include <piper/base/error.h>
#include <piper/schedule/gpipe.h>
#include <piper/schedule/one_f_one_b.h>

namespace piper::schedule {

std::vector<Action> actions(strategy::PipelineSchedule schedule, int64_t pp, int64_t stage,
                            int64_t num_micro_batches) {
  PIPER_CHECK(stage >= 0 && stage < pp && num_micro_batches >= 1, "stage and micro-batches");
  switch (schedule) {
    case strategy::PipelineSchedule::kGPipe:
      return gpipe_actions(num_micro_batches);
    case strategy::PipelineSchedule::k1F1B:
      return one_f_one_b_actions(pp, stage, num_micro_batches);
    case strategy::PipelineSchedule::kInterleaved:
    case strategy::PipelineSchedule::kZbH1:
    case strategy::PipelineSchedule::kZbV:
    case strategy::PipelineSchedule::kDualPipeV:
      break;
  }
  PIPER_CHECK(false, "a schedule that no step is written for");
  return {};
}

}  // namespace piper::schedule
