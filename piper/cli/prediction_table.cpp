#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/prediction_table.h>
#include <piper/report/table.h>

namespace piper::cli {

using report::Align;

std::string run_by(const cost::TrainerProfile& trainer, bool has_exact_costs) {
  if (has_exact_costs) return "as this Piper trains there";
  return fmt::format("as the trainer '{}' would run it", trainer.name);
}

std::vector<Figure> time_figures(const plan::Prediction& p) {
  std::vector<Figure> figures{{"step", p.step_seconds, format_seconds}};
  for (const auto& [name, seconds] : plan::parts_of(p.estimate.time))
    figures.push_back({std::string("  ") + name, seconds, format_seconds});
  return figures;
}

std::vector<Figure> memory_figures(const plan::Prediction& p) {
  const cost::StageBytes& m = p.estimate.fullest;
  return {{"memory of the fullest stage", p.estimate.peak_bytes, format_bytes},
          {"  weights and gradients", m.weights_and_gradients, format_bytes},
          {"  optimizer", m.optimizer, format_bytes},
          {"  activations", m.activations, format_bytes},
          {"  working", m.working, format_bytes},
          {"  scratch of exchanges", m.exchange, format_bytes},
          {"  fixed", m.fixed, format_bytes}};
}

void print_prediction(const plan::Prediction& p) {
  report::Table time;
  time.columns = {{"time"}, {"", Align::kRight}, {"of the step", Align::kRight}};
  for (const Figure& f : time_figures(p))
    if (f.value > 0)
      time.rows.push_back({f.name, f.format(f.value), format_percent(f.value / p.step_seconds)});
  say("\n{}", Lines{report::to_text(time)});
  if (p.simulated_seconds) say("simulated; closed form {}\n", format_seconds(p.estimate.seconds));
  report::Table memory;
  memory.columns = {{"memory"}, {"", Align::kRight}};
  for (const Figure& f : memory_figures(p))
    if (f.value > 0) memory.rows.push_back({f.name, f.format(f.value)});
  say("\n{}stage {} is the fullest, stage {} the busiest\n", Lines{report::to_text(memory)},
      p.estimate.fullest_stage, p.estimate.busiest_stage);
}

}  // namespace piper::cli
