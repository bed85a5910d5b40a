// config.json of a model: what is accepted can be counted.
#include <piper/base/python_json.h>
#include <piper/model/count.h>
#include <piper/model/describe.h>
#include <piper/model/import.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const model::Model model = model::import_config(parse_python_json(text_of(bytes), "f"), "f");
  const int64_t total = model::count_parameters(model).total();
  const int64_t active = model::active_parameters(model);
  FUZZ_CHECK(!model.layers.empty() && total > 0 && active > 0);
  FUZZ_CHECK(model::token_flops(model, 4096).forward() > 0);
}

}  // namespace piper::fuzz
