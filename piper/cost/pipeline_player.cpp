#include <piper/base/error.h>
#include <piper/cost/pipeline_player.h>
#include <piper/schedule/executable.h>

#include <algorithm>

namespace piper::cost {

using schedule::Action;

PipelinePlayer::PipelinePlayer(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                               int64_t num_micro_batches)
    : ends_(static_cast<size_t>(2 * pp * vpp * num_micro_batches + 2)),
      ranks_(static_cast<size_t>(pp)),
      times_(static_cast<size_t>(pp)),
      peaks_(static_cast<size_t>(pp)) {
  const int64_t m = num_micro_batches, stages = pp * vpp;
  const auto nothing = static_cast<int32_t>(ends_.size() - 2), no_one = nothing + 1;
  const auto order =
      schedule::in_order_of_need(schedule, schedule::all_actions(schedule, pp, m, vpp), m, vpp);
  std::vector<int64_t> live(static_cast<size_t>(pp));
  steps_.reserve(order.size());
  for (const auto& [rank, action] : order) {
    const int64_t stage = schedule::virtual_stage(schedule, pp, rank, action.chunk);
    const bool is_forward = action.kind == Action::Kind::kForward;
    const int64_t from = stage + (is_forward ? -1 : 1), half = is_forward ? 0 : stages;
    const bool is_made = action.kind != Action::Kind::kBackwardWeights;
    const bool has_need = is_made && from >= 0 && from < stages;
    steps_.push_back(
        {.rank = rank,
         .stage = static_cast<int32_t>(stage),
         .needs = has_need ? static_cast<int32_t>((half + from) * m + action.micro_batch) : nothing,
         .makes = is_made ? static_cast<int32_t>((half + stage) * m + action.micro_batch) : no_one,
         .kind = action.kind,
         .is_sent = has_need && schedule::rank_of_stage(schedule, pp, from) != rank,
         .is_pair = action.pairs_with_next});
    int64_t& here = live[static_cast<size_t>(rank)];
    int64_t& peak = peaks_[static_cast<size_t>(rank)];
    here += is_forward ? 1 : 0;
    peak = std::max(peak, here);
    here -= schedule::makes_weight_gradients(action.kind) ? 1 : 0;
  }
}

double PipelinePlayer::seconds_of(const Step& step, const ChunkSeconds& chunk) const {
  switch (step.kind) {
    case Action::Kind::kForward:
      return chunk.forward;
    case Action::Kind::kBackward:
      return chunk.backward;
    case Action::Kind::kBackwardInput:
      return chunk.backward_input;
    case Action::Kind::kBackwardWeights:
      return chunk.backward_weights;
  }
  return 0;
}

// May be later than the rank is free by less than what is `ahead`: that part has then run already.
double PipelinePlayer::start_of(const Step& step, std::span<const ChunkSeconds> chunks) const {
  const Rank& rank = ranks_[static_cast<size_t>(step.rank)];
  double arrives = ends_[static_cast<size_t>(step.needs)];
  if (step.is_sent) {
    const bool is_forward = step.kind == Action::Kind::kForward;
    const ChunkSeconds& from = chunks[static_cast<size_t>(step.stage + (is_forward ? -1 : 1))];
    arrives =
        std::max(arrives, rank.before) + (is_forward ? from.send_forward : from.send_backward);
  }
  const double ahead =
      schedule::makes_input_gradient(step.kind) ? chunks[static_cast<size_t>(step.stage)].ahead : 0;
  return std::max(rank.free_at, arrives - ahead);
}

void PipelinePlayer::end(const Step& step, double start, double at, double busy) {
  Rank& rank = ranks_[static_cast<size_t>(step.rank)];
  RankSeconds& times = times_[static_cast<size_t>(step.rank)];
  if (times.busy == 0) times.start = start;
  times.busy += busy;
  rank.before = rank.free_at;
  rank.free_at = times.finish = ends_[static_cast<size_t>(step.makes)] = at;
}

std::span<const RankSeconds> PipelinePlayer::play(std::span<const ChunkSeconds> chunks,
                                                  bool pairs_overlap) & {
  PIPER_DCHECK(!steps_.empty());
  std::ranges::fill(ranks_, Rank{});
  std::ranges::fill(times_, RankSeconds{});
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const double seconds = seconds_of(step, chunks[static_cast<size_t>(step.stage)]);
    double start = start_of(step, chunks);
    if (!pairs_overlap || !step.is_pair) {
      end(step, start, start + seconds, seconds);
      continue;
    }
    const Step& other = steps_[++i];
    start = std::max(start, start_of(other, chunks));
    const ChunkSeconds &a = chunks[static_cast<size_t>(step.stage)],
                       &b = chunks[static_cast<size_t>(other.stage)];
    const double both = seconds + seconds_of(other, b) - std::min(a.pair_saves, b.pair_saves);
    end(step, start, start + both, both);
    end(other, start, start + both, 0);
  }
  return times_;
}

}  // namespace piper::cost
