// The estimator's use of cost/pipeline_player.h: schedules whose bubbles no formula has for stages that differ.
#include <piper/stack/sums.h>

#include <algorithm>

namespace piper::stack {

using strategy::Strategy;

// By virtual stage; kept until other stages are summed.
const std::vector<Estimator::StageSums>& Estimator::chunk_sums(const Strategy& s,
                                                               const Prices& prices) {
  std::vector<StageSums>& chunks = sums_->chunks;
  if (!chunks.empty()) return chunks;
  chunks.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      sum_chunk(s, prices, s.recompute_of(stage), chunk, chunks[static_cast<size_t>(chunk)]);
    });
  return chunks;
}

// When the last rank has done its last action. Of more micro-batches than fill the pipeline four times, the others follow at
// the pace of the slowest rank.
double Estimator::pipeline_finish(const Strategy& s, const Prices& prices,
                                  const std::vector<StageSums>& sums,
                                  const std::vector<StageOverlap>& states, double message) {
  const int64_t p = s.mesh.pp, m = s.num_micro_batches, played = std::min(m, 4 * p + m % p);
  const std::vector<StageSums>& of_chunks = chunk_sums(s, prices);
  chunks_.resize(of_chunks.size());
  double slowest = 0;
  for (int64_t stage = 0; stage < p; ++stage) {
    const auto i = static_cast<size_t>(stage);
    double pace = 0, saves = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const StageSums& u = of_chunks[static_cast<size_t>(chunk)];
      const double part = sums[i].layers > 0 ? u.layers / sums[i].layers : 0;
      Busy b = busy_of(s, u);
      b.add(states[i], part);
      chunks_[static_cast<size_t>(chunk)] = {.forward = b.forward,
                                             .backward_input = b.backward - b.weights,
                                             .backward_weights = b.weights,
                                             .backward = b.backward,
                                             .send_forward = message,
                                             .send_backward = message,
                                             .pair_saves = b.hideable};
      pace += b.total();
      saves = saves > 0 ? 2 * std::min(saves, b.hideable) : b.hideable;
    });
    if (s.mesh.vpp != 2) saves = 0;
    slowest = std::max(slowest, pace - saves);
  }
  std::unique_ptr<cost::PipelinePlayer>& player = players_[{s.schedule, p, s.mesh.vpp, played}];
  if (!player) player = std::make_unique<cost::PipelinePlayer>(s.schedule, p, s.mesh.vpp, played);
  double finish = 0;
  for (const cost::RankSeconds& rank :
       player->play(chunks_, s.schedule == strategy::PipelineSchedule::kDualPipeV))
    finish = std::max(finish, rank.finish);
  return finish + static_cast<double>(m - played) * slowest;
}

double Estimator::played_seconds(const Strategy& s, double imbalance) {
  const Estimate e = estimate(s, imbalance);
  if (s.mesh.pp == 1) return e.seconds;
  const Prices& prices = this->prices(s, imbalance);
  const std::vector<StageSums>& sums = stage_sums(s, prices);
  const double finish =
      pipeline_finish(s, prices, sums, overlaps(s, prices, sums), message(s, prices).total());
  return e.seconds - e.in_pipeline + finish;
}

}  // namespace piper::stack
