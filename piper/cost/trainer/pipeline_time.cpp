#include <piper/cost/bubble.h>
#include <piper/cost/trainer/pipeline_time.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <limits>

namespace piper::cost {

using strategy::PipelineSchedule;
using strategy::Strategy;

namespace {

// A layer more or less, the ends left out: no formula has what ranks then wait in every round.
bool chunks_differ(const Strategy& s) {
  if (s.mesh.vpp == 1) return false;
  const auto [least, most] = std::ranges::minmax(s.layers_per_stage);
  return least != most;
}

// Interleaved in pairs the last chunk's gradient goes from the first rank to the last, where the
// next pair needs it: a round of as many pairs as there are ranks has as many messages that none
// hides.
bool awaits_messages(const Strategy& s) {
  return strategy::interleaves(s.schedule) && strategy::pairs_take_turns(s);
}

}  // namespace

double pipeline_bubble(const Strategy& s, const std::vector<BusySeconds>& stages, size_t busiest,
                       double message) {
  if (s.mesh.pp == 1) return 0;
  BusySeconds mean;
  double others = 0;
  const auto p = static_cast<double>(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    mean.forward += stages[i].forward / p;
    mean.backward += stages[i].backward / p;
    mean.weights += stages[i].weights / p;
    if (i != busiest) others += stages[i].total();
  }
  const RankPassSeconds pass{.forward = mean.forward,
                             .backward_input = mean.backward - mean.weights,
                             .backward_weights = mean.weights};
  const double equal =
      bubble_seconds(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, pass, message);
  return mean.total() > 0 ? equal * others / ((p - 1) * mean.total()) : equal;
}

void PipelineTime::fill_chunks(const Strategy& s, const ShapePrices& prices,
                               const std::vector<StageOverlap>& states) {
  const strategy::RankLayout layout(s);
  const auto message = [&](int64_t chunk, int64_t other) {
    const int64_t last = std::ssize(s.layers_per_stage);
    if (other < 0 || other >= last) return CommTime{};
    const auto rank_of = [&](int64_t of) {
      return schedule::rank_of_stage(s.schedule, s.mesh.pp, of);
    };
    return stage_message(context_, layout, prices, rank_of(chunk), rank_of(other)).moves;
  };
  const std::vector<StageSums>& of_chunks = sums_.of_chunks(s, prices);
  const bool pairs = strategy::pairs(s.schedule);
  const bool splits = strategy::splits_backward(s.schedule) && !pairs;
  chunks_.resize(of_chunks.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageOverlap& of_stage = states[static_cast<size_t>(stage)];
    const ChunkOverlap only{.forward = of_stage.forward,
                            .backward = of_stage.backward,
                            .backward_input = of_stage.backward,
                            .weights = of_stage.weights};
    size_t number = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const StageSums& u = of_chunks[static_cast<size_t>(chunk)];
      const BusySeconds b = busy_seconds(context_, u);
      const CommTime forward = message(chunk, chunk + 1), backward = message(chunk, chunk - 1);
      const ChunkOverlap& more = of_stage.chunks.empty() ? only : of_stage.chunks[number++];
      chunks_[static_cast<size_t>(chunk)] = {
          .forward = b.forward + more.forward,
          .backward_input = b.backward - b.weights + more.backward_input,
          .backward_weights = b.weights + more.weights,
          .backward = b.backward + (splits ? more.backward_input + more.weights : more.backward),
          .send_forward = forward.total(),
          .send_backward = backward.total(),
          .meets_other = std::max(forward.transfer, backward.transfer),
          .pair_saves = b.hideable + more.pair_saves,
          .copy = context_.rates.host_copy_seconds(u.kept_bytes)};
    });
  }
}

bool PipelineTime::copies_activations(const Strategy& s) {
  if (!strategy::offloads_activations(s.offload)) return false;
  return std::ranges::any_of(schedules_.lists(s), [](const ListFacts& stage) {
    return std::ranges::any_of(stage.copied, [](int64_t count) { return count > 0; });
  });
}

// Through the stages before, forward and back, and between them either its work or its copies.
// GPipe has all forwards first: what its copies out and back hide behind, each hides behind alone.
double PipelineTime::least_finish(const Strategy& s, bool copies) {
  const auto m = static_cast<double>(s.num_micro_batches);
  const bool split = strategy::splits_backward(s.schedule);
  const bool pairs = strategy::pairs(s.schedule);
  double least = 0, there = 0, back = 0;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    double copied = 0, work = 0, forward = there, backward = back;
    size_t number = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const ChunkSeconds& c = chunks_[static_cast<size_t>(chunk)];
      const double input = pairs ? 0 : split ? c.backward_input : c.backward;
      forward = number == 0 ? c.forward : std::min(forward, c.forward);
      backward = number == 0 ? input : std::min(backward, input);
      if (copies)
        copied +=
            2 * c.copy *
            static_cast<double>(schedules_.lists(s)[static_cast<size_t>(stage)].copied[number]);
      work += m * (c.forward + c.backward);
      ++number;
    });
    least = std::max(least, there + forward + copied + backward + back);
    if (!pairs) least = std::max(least, there + work + (split ? 0 : back));
    const ChunkSeconds& c = chunks_[static_cast<size_t>(stage)];
    if (s.schedule == PipelineSchedule::kGPipe && copied > 0)
      least =
          std::max(least, there + std::max(m * c.forward, 2 * c.forward + (m - 2) * c.copy) +
                              std::max(m * c.backward, 2 * c.backward + (m - 2) * c.copy) + back);
    there += c.forward + c.send_forward;
    if (!pairs) back += (split ? c.backward_input : c.backward) + c.send_backward;
  }
  return least;
}

// Seconds that one more micro-batch takes: those of the slowest rank, computing or copying.
double PipelineTime::pace(const Strategy& s, int64_t simulated, bool copies) {
  const int64_t m = s.num_micro_batches;
  double slowest = 0, forward = 0, backward = 0;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    double work = 0, saves = std::numeric_limits<double>::infinity(), copy = 0;
    size_t number = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const ChunkSeconds& c = chunks_[static_cast<size_t>(chunk)];
      work += c.forward + c.backward;
      saves = std::min(saves, c.pair_saves);
      if (copies) {
        const auto i = static_cast<size_t>(stage);
        const auto more = static_cast<double>(schedules_.lists(s)[i].copied[number] -
                                              schedules_.lists(s, simulated)[i].copied[number]);
        copy += 2 * more / static_cast<double>(m - simulated) * c.copy;
      }
      forward = std::max(forward, std::max(c.forward, copy / 2));
      backward = std::max(backward, std::max(c.backward, copy / 2));
      ++number;
    });
    if (!strategy::pairs(s.schedule)) saves = 0;
    slowest = std::max({slowest, work - static_cast<double>(number) * saves, copy});
  }
  return copies && s.schedule == PipelineSchedule::kGPipe ? forward + backward : slowest;
}

std::span<const RankSeconds> PipelineTime::simulate(const Strategy& s, int64_t simulated,
                                                    bool copies) {
  return simulators_.of(s.schedule, s.mesh.pp, s.mesh.vpp, simulated, copies)
      .simulate(chunks_, strategy::pairs_take_turns(s));
}

// When the last rank finishes. Beyond the micro-batches that fill the pipeline four times, the
// others follow at the pace of the slowest rank; where ranks wait in every round, at the pace of
// two more rounds.
double PipelineTime::finish(const Strategy& s, bool copies) {
  const auto latest = [](std::span<const RankSeconds> ranks) {
    return std::ranges::max_element(ranks, {}, &RankSeconds::finish)->finish;
  };
  const int64_t p = s.mesh.pp, m = s.num_micro_batches;
  const int64_t simulated = micro_batches_simulated(p, m);
  const int64_t more = std::min(m - simulated, 2 * p);
  double further = 0;
  if (more > 0 && !copies && (chunks_differ(s) || awaits_messages(s)))
    further =
        (latest(simulate(s, simulated + more, copies)) - latest(simulate(s, simulated, copies))) /
        static_cast<double>(more) * static_cast<double>(m - simulated);
  else if (more > 0)
    further = static_cast<double>(m - simulated) * pace(s, simulated, copies);
  finishes_.clear();
  for (const RankSeconds& rank : simulate(s, simulated, copies))
    finishes_.push_back(rank.finish + further);
  return std::ranges::max(finishes_);
}

void PipelineTime::add(const Strategy& s, const ShapePrices& prices, const PipelineParts& pipeline,
                       const EstimateLimits& limits, Estimate& e) {
  const std::vector<StageOverlap>& states = pipeline.states;
  const bool copies = copies_activations(s), is_v = strategy::is_v(s.schedule);
  const bool split = strategy::splits_backward(s.schedule);
  const bool is_simulated =
      copies || strategy::pairs(s.schedule) ||
      (s.mesh.pp > 1 && (is_v || !states.front().chunks.empty() || chunks_differ(s) ||
                         (split && pipeline.with_states > 0)));
  earlier_.assign(states.size(), 0);
  for (size_t i = 0; i < states.size(); ++i)
    if (copies && (split || i > 0))
      earlier_[i] = std::numeric_limits<double>::infinity();  // nothing is known of it
    else if (!split)
      earlier_[i] = static_cast<double>(i) * pipeline.last_backward;
  e.time.reductions = pipeline.with_states + shown_states(s, states, earlier_);
  e.at_least = e.time.total();
  e.is_coarse = is_simulated && (e.at_least > limits.seconds || e.peak_bytes > limits.bytes);
  if (is_simulated && !e.is_coarse) {
    fill_chunks(s, prices, states);
    if (copies || !is_v) e.at_least += std::max(0.0, least_finish(s, copies) - pipeline.in_turn);
    e.is_coarse = e.at_least > limits.seconds;
  }
  e.time.bubble = pipeline.bubble;
  e.pipeline_seconds = pipeline.in_turn + pipeline.bubble;
  if (e.is_coarse) e.time.bubble += std::max(0.0, e.at_least - e.time.total());
  if (is_simulated && !e.is_coarse) {
    e.pipeline_seconds = finish(s, copies);
    const double idle = e.pipeline_seconds - pipeline.in_turn;
    e.time.bubble = idle;
    if (copies) {
      for (size_t i = 0; i < states.size(); ++i) earlier_[i] = e.pipeline_seconds - finishes_[i];
      e.time.reductions = pipeline.with_states + shown_states(s, states, earlier_);
      e.time.bubble = std::min(idle, pipeline.bubble);
      e.time.offload += idle - e.time.bubble;
    }
  }
  if (!e.is_coarse) e.at_least = e.time.total();
}

double PipelineTime::simulated(const Strategy& s, const ShapePrices& prices,
                               const std::vector<StageOverlap>& states) {
  fill_chunks(s, prices, states);
  return finish(s, copies_activations(s));
}

}  // namespace piper::cost
