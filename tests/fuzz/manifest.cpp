// manifest.json of a checkpoint: what is accepted is written and read again as it was.
#include <piper/base/json.h>
#include <piper/checkpoint/manifest.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const checkpoint::Manifest read =
      checkpoint::parse_manifest(parse_json(text_of(bytes), "f"), "f");
  FUZZ_CHECK(static_cast<int64_t>(read.files.size()) == read.identity.mesh.world());
  const Json written = checkpoint::to_json(read);
  const std::string text = written.dump(-1, ' ', false, Json::error_handler_t::replace);
  FUZZ_CHECK(checkpoint::to_json(checkpoint::parse_manifest(parse_json(text, "f"), "f")) ==
             written);
}

}  // namespace piper::fuzz
