// Byte text: the bytes of files, each one a token of 0..255. No tokenizer, no download.
//
// A text of up to 64 MiB is read into memory. The files of a longer one stay where they are and
// each window is read when it is asked for: 50 GB of text take no more memory than 64 MiB. The
// first 256 files stay open; the others are opened for each read, and must not have changed since.
//
// Thread safety: a Text is immutable and shares what it holds; any number of threads may read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace piper::data {

class Text {
 public:
  Text() = default;
  // In memory. `source` (a path) goes into messages. Throws InvalidInput when there are no bytes.
  Text(std::string bytes, std::string source);
  // The files' bytes one after the other. Throws InvalidInput when there are no bytes, and as
  // FileReader does.
  Text(const std::vector<std::filesystem::path>& files, std::string source);

  int64_t size() const;  // bytes
  const std::string& source() const { return source_; }
  // Fills `out` with the bytes [begin, begin + size). Requires a range inside. Throws IoError when
  // a file cannot be read, or is no longer what it was.
  void read(int64_t begin, void* out, int64_t size) const;

 private:
  struct Content;
  std::shared_ptr<const Content> content_;  // null: no bytes
  std::string source_;
};

// The files of a text: `path` itself, or all regular files below a folder in the order of their
// paths (byte-wise, '/' between folders), links to folders not followed. Throws IoError (absent,
// unreadable), InvalidInput (no file is left).
std::vector<std::filesystem::path> text_files(const std::filesystem::path& path);

// The default text: the project's own README.md, docs/ and piper/ below `project`, in that order,
// each folder as text_files() does but without folders named build, .git, .venv, __pycache__. A
// part that is absent is left out; throws IoError when all are.
Text read_own_text(const std::filesystem::path& project);

// Throws InvalidInput naming the first byte that is no token of the vocabulary. Reads the text only
// where a byte may be none. `progress` gets bytes checked and in all; may be empty.
void check_vocabulary(const Text& text, int64_t vocabulary,
                      const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace piper::data
