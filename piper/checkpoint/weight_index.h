// What model.safetensors.index.json says: which file of its folder holds which tensor.
#pragma once

#include <piper/base/json_fwd.h>

#include <filesystem>
#include <map>
#include <string>

namespace piper::checkpoint {

// tensor -> name of a file in the folder of `path`, the index file, which is only named: `json` is
// what it holds. Throws InvalidInput with all problems: another form, a file that is absent or
// outside the folder ("../", absolute, by a link).
std::map<std::string, std::string> parse_weight_index(const Json& json,
                                                      const std::filesystem::path& path);

}  // namespace piper::checkpoint
