// The name of the JSON type alone, for headers that only declare what takes or makes it: the
// library itself (piper/base/json.h) costs every file that includes it half a second.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace piper {

using Json = nlohmann::ordered_json;

class ObjectReader;
class Problems;

}  // namespace piper
