// JSON as Python's json module writes it: NaN, Infinity and -Infinity stand for numbers
// (config.json files of models hold them).
#pragma once

#include <piper/base/json_fwd.h>

#include <string>
#include <string_view>

namespace piper {

// parse_json (base/json.h), except that the three words are read as numbers that are not finite. A
// reader that asks such a key for a number refuses it by name: every bound of ObjectReader excludes
// them. Throws InvalidInput as parse_json does.
Json parse_python_json(std::string_view text, const std::string& source);

}  // namespace piper
