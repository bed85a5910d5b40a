// The model of a row: its stated shapes, on top of the built-in model or the known facts that its
// name points to.
#pragma once

#include <piper/model/model.h>
#include <piper/validate/measured_row.h>

#include <string>
#include <vector>

namespace piper::validate {

struct RowModel {
  model::Model model;
  std::vector<std::string> assumed;
  std::string not_priced;  // which field is missing; "" = fine
};

RowModel model_of(const MeasuredRow& row);

// Lower case, letters and digits only: "Qwen3_235B_a22B" and "qwen3-235b-a22b" are one name.
std::string plain_name(const std::string& name);

}  // namespace piper::validate
