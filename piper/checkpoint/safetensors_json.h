// The JSON of a safetensors header as a stream of events: form only, one tensor at a time (see
// safetensors_header.h).
#pragma once

#include <piper/checkpoint/safetensors_header.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace piper::checkpoint {

// Entries in the order of the text, offsets not yet compared with anything. Throws SafetensorsError
// at the first problem. `text` begins at byte 8 of the file.
SafetensorsHeader read_header_json(std::string_view text, const std::string& file);

// The type of a name such as "F32"; none = unknown.
std::optional<DType> dtype_named(std::string_view name);

// "tensor \"a\": " for messages; "" for "". Escaped and cut: a name is anything that its writer
// liked.
std::string subject(const std::string& tensor);

[[noreturn]] void fail_header(const std::string& file, int64_t offset, const std::string& tensor,
                              const std::string& what);

}  // namespace piper::checkpoint
