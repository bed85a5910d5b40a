// A description of a cluster: what is accepted is written and read again as it was.
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const cluster::Cluster read = cluster::parse_cluster(parse_json(text_of(bytes), "f"), "f");
  const Json written = cluster::to_json(read);
  const std::string text = written.dump(-1, ' ', false, Json::error_handler_t::replace);
  FUZZ_CHECK(cluster::to_json(cluster::parse_cluster(parse_json(text, "f"), "f")) == written);
}

}  // namespace piper::fuzz
