#include <piper/base/error.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/step.h>
#include <piper/schedule/writer.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::schedule {

StepGraph write_step(const model::Model& model, const strategy::Strategy& strategy,
                     const std::vector<Rank>& ranks, WrittenFor written_for) {
  const std::vector<std::string> problems = strategy::contradictions(strategy, model);
  PIPER_CHECK(problems.empty(), problems.front());
  strategy::Strategy runnable = strategy;
  if (written_for == WrittenFor::kSimulation) {
    runnable.schedule = strategy::PipelineSchedule::k1F1B;
    runnable.mesh.vpp = 1;
  }
  const std::vector<std::string> lacking = strategy::not_runnable(runnable);
  PIPER_CHECK(lacking.empty(), lacking.front());
  std::vector<Rank> written = ranks;
  if (written.empty()) written = strategy::RankLayout(strategy).world();
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  StepWriter writer(model, strategy);
  for (const Rank rank : written) write_rank(writer, rank);
  return writer.take();
}

}  // namespace piper::schedule
