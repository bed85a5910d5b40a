// Byte text: the bytes of files, each one a token of 0..255. No tokenizer, no download.
//
// Thread safety: a Text is immutable and shares its bytes; any number of threads may read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace piper::train {

class Text {
 public:
  Text() = default;
  // `source` (a path) goes into messages. Throws InvalidInput when there are no bytes.
  Text(std::string bytes, std::string source);

  std::string_view bytes() const { return view_; }
  int64_t size() const { return static_cast<int64_t>(view_.size()); }
  const std::string& source() const { return source_; }

 private:
  std::shared_ptr<const std::string> storage_;
  std::string_view view_;
  std::string source_;
};

// A file, or a folder: all regular files below it in the order of their paths (byte-wise, '/' between
// folders), links to folders not followed. `extensions` (".txt") keeps only such files; empty = all.
// Throws IoError (absent, unreadable), InvalidInput (no file is left, or all are empty).
Text read_text(const std::filesystem::path& path, const std::vector<std::string>& extensions = {});

// The default text: the project's own README.md, docs/ and piper/ below `project`, in that order, each
// folder as read_text does but without folders named build, .git, .venv, __pycache__. A part that is absent
// is left out; throws IoError when all are.
Text read_own_text(const std::filesystem::path& project);

// Throws InvalidInput naming the first byte that is no token of the vocabulary.
void check_vocabulary(const Text& text, int64_t vocabulary);

}  // namespace piper::train
