// What a prediction looks like on the console, whichever command shows it.
#pragma once

#include <piper/plan/prediction.h>

#include <string>
#include <vector>

namespace piper::cli {

// Who is predicted to run it: "as the trainer 'megatron' would run it", or with exact costs "as
// this Piper trains there".
std::string run_by(const cost::TrainerProfile& trainer, bool has_exact_costs);

// One figure of a prediction; names of parts are indented.
struct Figure {
  std::string name;
  double value = 0;
  std::string (*format)(double) = nullptr;
};
std::vector<Figure> time_figures(const plan::Prediction& prediction);
std::vector<Figure> memory_figures(const plan::Prediction& prediction);

// Both, of one strategy: figures that are 0 left out.
void print_prediction(const plan::Prediction& prediction);

}  // namespace piper::cli
