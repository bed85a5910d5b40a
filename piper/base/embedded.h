// Files of the tree that are built into the program: models and clusters are data in configs/, and
// the binary must find them from any working directory. cmake/embed.cmake turns them into string
// literals.
#pragma once

#include <string_view>

namespace piper {

struct EmbeddedFile {
  std::string_view name;  // the file's name without folder and extension
  std::string_view text;  // its whole content
};

}  // namespace piper
