// A strategy: what is accepted is written and read again as it was.
#include <piper/base/json.h>
#include <piper/strategy/strategy.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const strategy::Strategy read = strategy::parse_strategy(parse_json(text_of(bytes), "f"), "f");
  strategy::contradictions(read);
  const Json written = strategy::to_json(read);
  const std::string text = written.dump(-1, ' ', false, Json::error_handler_t::replace);
  FUZZ_CHECK(strategy::to_json(strategy::parse_strategy(parse_json(text, "f"), "f")) == written);
}

}  // namespace piper::fuzz
