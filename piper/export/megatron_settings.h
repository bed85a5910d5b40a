// A plan as one list of Megatron Core's settings, whoever starts it: the flag of Megatron-LM, the
// field of its configuration classes, and the value. Writers pick what their trainer calls them:
//
//   megatron.cpp          a start script of Megatron-LM with the flags
//   megatron_bridge.cpp   a recipe of Megatron-Bridge with the fields
//   nemo.cpp              what NeMo 2 asks for, by class
#pragma once

#include <piper/export/export.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

namespace piper::exporting {

// In both languages.
struct Value {
  std::string shell;   // quoted where the shell wants it; "" for a switch that is on
  std::string python;  // a literal
};
Value on();
Value off();  // no flag: what is off by default
Value words(const std::vector<std::string>& list);
Value number(double value);
template <std::integral T>
Value number(T value) {
  return {std::to_string(value), std::to_string(value)};
}
Value word(const std::string& value);

struct Setting {
  // Megatron-LM's; "" where it has none and needs none. A value that is off() writes no flag.
  std::string flag;
  // "model.num_layers": the object of Megatron-Bridge's configuration (model, optimizer, ddp,
  // train, dist, dataset) and its field; "" where there is none.
  std::string field;
  Value value;
  bool is_model = false;  // of the model's shapes, not of how it is run
};

struct MegatronSettings {
  std::vector<Setting> settings;
  std::vector<std::string> differs;
  std::vector<std::string> cannot;       // whoever writes it
  std::vector<std::string> has_no_flag;  // fields can say it, flags cannot
};

// With what the job's ruling wants.
MegatronSettings megatron_settings(const Job& job);

// "Et*11|t*13|t*13|t*11mL": the layers of each stage, and the modules of multi-token prediction in
// front of the loss, where the layers are not the even split that Megatron makes by itself (the
// layers divided by the stages without a remainder); "" where they are.
std::string pipeline_layout(const model::Model& model, const strategy::Strategy& strategy);

// "deepseek-v3 on 256 devices of dgx-h100".
std::string what_of(const Job& job);

}  // namespace piper::exporting
