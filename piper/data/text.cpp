#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/data/text.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

// Regular files below `folder`, sorted by path; `skipped` names folders that are not entered.
std::vector<fs::path> files_below(const fs::path& folder, const std::set<std::string>& skipped) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error), end;
  while (!error && walk != end) {
    std::error_code ignored;
    if (walk->is_directory(ignored) && skipped.contains(walk->path().filename().string()))
      walk.disable_recursion_pending();
    else if (walk->is_regular_file(ignored))
      files.push_back(walk->path());
    walk.increment(error);
  }
  if (error)
    throw IoError(fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.generic_string() < b.generic_string();
  });
  return files;
}

constexpr int64_t kInMemory = int64_t{64} << 20;
constexpr int64_t kHeldOpen = 256;  // descriptors; a process may have 1024 by default
constexpr int64_t kAtOnce = 1 << 20;

// A file of a text.
struct Piece {
  int64_t begin = 0;  // in the text
  int64_t size = 0;
  int64_t modified_ns = 0;
  fs::path path;
  std::shared_ptr<const FileReader> held = {};  // null: opened for each read

  std::shared_ptr<const FileReader> open() const {
    if (held) return held;
    auto file = std::make_shared<const FileReader>(path);
    if (file->size() != size || file->modified_ns() != modified_ns)
      throw IoError(path.string() + ": has changed since it was first opened");
    return file;
  }
};

}  // namespace

struct Text::Content {
  std::string memory;
  std::vector<Piece> pieces;  // of a text that is not in memory; none is empty
  int64_t size = 0;

  void read(int64_t begin, char* out, int64_t count) const {
    if (pieces.empty()) {
      std::memcpy(out, memory.data() + begin, static_cast<size_t>(count));
      return;
    }
    auto piece = std::prev(std::ranges::upper_bound(pieces, begin, {}, &Piece::begin));
    for (; count > 0; ++piece) {
      const int64_t here = std::min(count, piece->begin + piece->size - begin);
      piece->open()->read(begin - piece->begin, out, here);
      out += here;
      begin += here;
      count -= here;
    }
  }

  void take_into_memory() {
    std::string bytes(static_cast<size_t>(size), '\0');
    if (size > 0) read(0, bytes.data(), size);
    memory = std::move(bytes);
    pieces.clear();
  }
};

Text::Text(std::string bytes, std::string source) : source_(std::move(source)) {
  if (bytes.empty()) throw InvalidInput(source_ + ": is empty; text to train on is expected");
  const int64_t size = std::ssize(bytes);
  content_ = std::make_shared<const Content>(std::move(bytes), std::vector<Piece>(), size);
}

Text::Text(const std::vector<fs::path>& files, std::string source) : source_(std::move(source)) {
  Content content;
  for (const fs::path& path : files) {
    auto file = std::make_shared<const FileReader>(path);
    if (file->size() == 0) continue;
    content.pieces.push_back({content.size, file->size(), file->modified_ns(), path, file});
    content.size += file->size();
    if (std::ssize(content.pieces) > kHeldOpen) content.pieces.back().held.reset();
  }
  if (content.size == 0) throw InvalidInput(source_ + ": is empty; text to train on is expected");
  if (content.size <= kInMemory) content.take_into_memory();
  content_ = std::make_shared<const Content>(std::move(content));
}

int64_t Text::size() const { return content_ ? content_->size : 0; }

void Text::read(int64_t begin, void* out, int64_t size) const {
  PIPER_CHECK(begin >= 0 && size >= 0 && begin <= this->size() - size);
  if (size > 0) content_->read(begin, static_cast<char*>(out), size);
}

std::vector<fs::path> text_files(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw InvalidInput(path.string() + ": cannot be read: no such file or folder");
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files = files_below(path, {});
  if (files.empty()) throw InvalidInput(path.string() + ": holds no file");
  return files;
}

Text read_own_text(const fs::path& project) {
  const std::set<std::string> skipped = {"build", ".git", ".venv", "__pycache__"};
  std::vector<fs::path> files;
  for (const char* name : {"README.md", "docs", "piper"}) {
    const fs::path part = project / name;
    std::error_code error;
    if (fs::is_directory(part, error))
      std::ranges::move(files_below(part, skipped), std::back_inserter(files));
    else if (fs::is_regular_file(part, error))
      files.push_back(part);
  }
  if (files.empty())
    throw IoError(project.string() +
                  ": holds none of README.md, docs, piper: the default text; name another");
  return Text(files, "the project's own files");
}

void check_vocabulary(const Text& text, int64_t vocabulary,
                      const std::function<void(int64_t, int64_t)>& progress) {
  if (vocabulary > std::numeric_limits<unsigned char>::max()) return;
  std::vector<unsigned char> bytes(static_cast<size_t>(std::min(kAtOnce, text.size())));
  for (int64_t first = 0; first < text.size(); first += kAtOnce) {
    bytes.resize(static_cast<size_t>(std::min(kAtOnce, text.size() - first)));
    text.read(first, bytes.data(), std::ssize(bytes));
    const auto bad =
        std::ranges::find_if(bytes, [&](unsigned char byte) { return byte >= vocabulary; });
    if (bad != bytes.end())
      throw InvalidInput(fmt::format(
          "{}: byte {} at offset {} is no token of a vocabulary of {}; byte text needs 256",
          text.source(), *bad, first + (bad - bytes.begin()), vocabulary));
    if (progress) progress(first + std::ssize(bytes), text.size());
  }
}

}  // namespace piper::data
