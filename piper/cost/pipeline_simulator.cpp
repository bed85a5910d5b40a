#include <piper/base/error.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/schedule/executable.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>

namespace piper::cost {

using schedule::Action;

// One rank's copies, numbered in the order in which they are posted.
class PipelineSimulator::CopyList {
 public:
  CopyList(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m, int32_t rank,
           std::vector<Copy>& list)
      : schedule_(schedule),
        pp_(pp),
        m_(m),
        rank_(rank),
        plan_(schedule::host_copies(schedule, pp, vpp, m, rank)),
        out_(plan_.is_copied.size(), HostLink::kNone),
        back_(out_),
        list_(list) {}

  // The next action of the rank's list.
  void add(const Action& action, Step& step) {
    const auto which = static_cast<size_t>(action.chunk * m_ + action.micro_batch);
    if (action.kind == Action::Kind::kForward) {
      if (const int32_t before = plan_.starts_behind[which]; before >= 0)
        step.awaits = out_[static_cast<size_t>(before)];
      if (plan_.is_copied[which] != 0) out_[which] = post(action.chunk, HostLink::kNone);
    }
    if (schedule::makes_input_gradient(action.kind)) step.awaits = back_[which];
    for (; brought_ < plan_.back.size() && plan_.back[brought_].place == place_; ++brought_) {
      const auto back = static_cast<size_t>(plan_.back[brought_].which);
      back_[back] = post(static_cast<int64_t>(back) / m_, out_[back]);
    }
    step.copies = static_cast<int32_t>(list_.size());
    ++place_;
  }

 private:
  int32_t post(int64_t chunk, int32_t behind) {
    list_.push_back(
        {static_cast<int32_t>(schedule::virtual_stage(schedule_, pp_, rank_, chunk)), behind});
    return static_cast<int32_t>(list_.size()) - 1;
  }

  strategy::PipelineSchedule schedule_;
  int64_t pp_, m_;
  int32_t rank_;
  schedule::HostCopies plan_;
  std::vector<int32_t> out_, back_;  // numbers, by chunk and micro-batch
  std::vector<Copy>& list_;
  int32_t place_ = 0;
  size_t brought_ = 0;
};

PipelineSimulator::PipelineSimulator(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                                     int64_t num_micro_batches, bool copies_activations)
    : ends_(static_cast<size_t>(2 * pp * vpp * num_micro_batches + 2)),
      ranks_(static_cast<size_t>(pp)),
      times_(static_cast<size_t>(pp)),
      peaks_(static_cast<size_t>(pp)) {
  const int64_t m = num_micro_batches, stages = pp * vpp;
  const auto nothing = static_cast<int32_t>(ends_.size() - 2), no_one = nothing + 1;
  const auto order =
      schedule::topological_order(schedule, schedule::all_actions(schedule, pp, m, vpp), m, vpp);
  std::vector<int64_t> live(static_cast<size_t>(pp));
  std::vector<CopyList> lists;
  copies_.resize(copies_activations ? static_cast<size_t>(pp) : 0);
  for (std::vector<Copy>& copies : copies_)
    lists.emplace_back(schedule, pp, vpp, m, static_cast<int32_t>(lists.size()), copies);
  steps_.reserve(order.size());
  std::vector<bool> sent_in_pairs(ends_.size());
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
    const auto sends = [&](const Step& step, int64_t to) {
      return to >= 0 && to < stages && schedule::rank_of_stage(schedule, pp, to) != step.rank;
    };
    steps_.back().meets_other = sent_in_pairs[static_cast<size_t>(steps_.back().needs)];
    if (steps_.size() > 1 && steps_[steps_.size() - 2].is_pair) {
      const Step &first = steps_[steps_.size() - 2], &second = steps_.back();
      const bool both = sends(first, first.stage + 1) && sends(second, second.stage - 1);
      for (const Step* step : {&first, &second})
        sent_in_pairs[static_cast<size_t>(step->makes)] = both;
    }
    if (copies_activations) lists[static_cast<size_t>(rank)].add(action, steps_.back());
    int64_t& here = live[static_cast<size_t>(rank)];
    int64_t& peak = peaks_[static_cast<size_t>(rank)];
    here += is_forward ? 1 : 0;
    peak = std::max(peak, here);
    here -= schedule::makes_weight_gradients(action.kind) ? 1 : 0;
  }
  for (const std::vector<Copy>& copies : copies_) links_.emplace_back(copies.size());
}

double PipelineSimulator::seconds_of(const Step& step, const ChunkSeconds& chunk) const {
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
double PipelineSimulator::start_of(const Step& step, std::span<const ChunkSeconds> chunks,
                                   bool pairs_overlap) {
  const Rank& rank = ranks_[static_cast<size_t>(step.rank)];
  double arrives = ends_[static_cast<size_t>(step.needs)];
  if (step.is_sent) {
    const bool is_forward = step.kind == Action::Kind::kForward;
    const ChunkSeconds& from = chunks[static_cast<size_t>(step.stage + (is_forward ? -1 : 1))];
    arrives = std::max(arrives, rank.before) +
              (is_forward ? from.send_forward : from.send_backward) +
              (pairs_overlap && step.meets_other ? from.meets_other : 0);
  }
  const double ahead =
      schedule::makes_input_gradient(step.kind) ? chunks[static_cast<size_t>(step.stage)].ahead : 0;
  const double start = std::max(rank.free_at, arrives - ahead);
  if (step.awaits == HostLink::kNone) return start;
  return std::max(start, links_[static_cast<size_t>(step.rank)].end_of(step.awaits));
}

void PipelineSimulator::end(const Step& step, double start, double at, double busy) {
  Rank& rank = ranks_[static_cast<size_t>(step.rank)];
  RankSeconds& times = times_[static_cast<size_t>(step.rank)];
  if (times.busy == 0) times.start = start;
  times.busy += busy;
  rank.before = rank.free_at;
  rank.free_at = times.finish = ends_[static_cast<size_t>(step.makes)] = at;
}

void PipelineSimulator::post(const Step& step, std::span<const ChunkSeconds> chunks) {
  if (links_.empty()) return;
  const auto rank = static_cast<size_t>(step.rank);
  HostLink& link = links_[rank];
  while (link.num_posted() < step.copies) {
    const Copy& copy = copies_[rank][static_cast<size_t>(link.num_posted())];
    link.post(ranks_[rank].free_at, chunks[static_cast<size_t>(copy.stage)].copy, copy.behind);
  }
}

std::span<const RankSeconds> PipelineSimulator::simulate(std::span<const ChunkSeconds> chunks,
                                                         bool pairs_overlap) & {
  PIPER_DCHECK(!steps_.empty());
  std::ranges::fill(ranks_, Rank{});
  std::ranges::fill(times_, RankSeconds{});
  for (HostLink& link : links_) link.reset();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const double seconds = seconds_of(step, chunks[static_cast<size_t>(step.stage)]);
    double start = start_of(step, chunks, pairs_overlap);
    if (!pairs_overlap || !step.is_pair) {
      end(step, start, start + seconds, seconds);
      post(step, chunks);
      continue;
    }
    const Step& other = steps_[++i];
    start = std::max(start, start_of(other, chunks, pairs_overlap));
    const ChunkSeconds &a = chunks[static_cast<size_t>(step.stage)],
                       &b = chunks[static_cast<size_t>(other.stage)];
    const double both = seconds + seconds_of(other, b) - std::min(a.pair_saves, b.pair_saves);
    const double before = ranks_[static_cast<size_t>(step.rank)].free_at;
    end(step, start, start + both, both);
    end(other, start, start + both, 0);
    ranks_[static_cast<size_t>(step.rank)].before = before;  // the two are one action in this
    post(other, chunks);
  }
  return times_;
}

PipelineSimulator& PipelineSimulators::of(strategy::PipelineSchedule schedule, int64_t pp,
                                          int64_t vpp, int64_t num_micro_batches,
                                          bool copies_activations) {
  std::unique_ptr<PipelineSimulator>& simulator =
      simulators_[{schedule, pp, vpp, num_micro_batches, copies_activations}];
  if (!simulator)
    simulator = std::make_unique<PipelineSimulator>(schedule, pp, vpp, num_micro_batches,
                                                    copies_activations);
  return *simulator;
}

std::vector<double> PipelineSimulators::finish(strategy::PipelineSchedule schedule, int64_t pp,
                                               int64_t vpp, int64_t num_micro_batches,
                                               std::span<const ChunkSeconds> chunks,
                                               bool copies_activations, bool pairs_overlap) {
  const auto simulated = [&](int64_t m) {
    std::vector<double> finish;
    for (const RankSeconds& rank :
         of(schedule, pp, vpp, m, copies_activations).simulate(chunks, pairs_overlap))
      finish.push_back(rank.finish);
    return finish;
  };
  const int64_t some = micro_batches_simulated(pp, num_micro_batches);
  const int64_t more = std::min(num_micro_batches - some, 2 * pp);
  std::vector<double> times = simulated(some);
  if (more == 0) return times;
  const std::vector<double> later = simulated(some + more);
  const auto rest = static_cast<double>(num_micro_batches - some);
  for (size_t i = 0; i < times.size(); ++i)
    times[i] += (later[i] - times[i]) / static_cast<double>(more) * rest;
  return times;
}

}  // namespace piper::cost
