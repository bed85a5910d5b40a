// model.safetensors.index.json: no accepted file name leaves the folder, which holds nothing here.
#include <piper/base/json.h>
#include <piper/checkpoint/weight_index.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const auto files = checkpoint::parse_weight_index(parse_json(text_of(bytes), "f"),
                                                    "no-such-folder/model.safetensors.index.json");
  FUZZ_CHECK(files.empty());
}

}  // namespace piper::fuzz
