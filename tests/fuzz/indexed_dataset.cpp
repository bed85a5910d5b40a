// Megatron's .idx and .bin, in memory: what is accepted can be read to its last token.
#include <piper/base/error.h>
#include <piper/data/indexed_dataset.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

namespace fs = std::filesystem;

// A file in memory behind a link PREFIX.idx or PREFIX.bin.
class MemoryFile {
 public:
  explicit MemoryFile(const fs::path& link) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    fs::remove(link);
    fs::create_symlink("/proc/self/fd/" + std::to_string(fd_), link);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void hold(std::string_view bytes) const {
    FUZZ_CHECK(::ftruncate(fd_, 0) == 0);
    FUZZ_CHECK(::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  int fd_;
};

struct Dataset {
  fs::path folder = fs::temp_directory_path() / ("piper-fuzz-" + std::to_string(::getpid()));
  bool made = fs::create_directories(folder);
  fs::path prefix = folder / "d";
  MemoryFile index{data::index_path(prefix)}, tokens{data::tokens_path(prefix)};
  ~Dataset() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
};

}  // namespace

// The first two bytes are the size of .bin, whose bytes are at the end.
void fuzz(std::span<const std::byte> bytes) {
  static const Dataset dataset;
  const std::string_view text = text_of(bytes);
  uint16_t num_bytes = 0;
  if (text.size() < sizeof num_bytes) return;
  std::memcpy(&num_bytes, text.data(), sizeof num_bytes);
  const size_t begin =
      std::max<size_t>(sizeof num_bytes, text.size() - std::min<size_t>(num_bytes, text.size()));
  dataset.index.hold(text.substr(sizeof num_bytes, begin - sizeof num_bytes));
  dataset.tokens.hold(text.substr(begin));

  const data::IndexedDataset read(dataset.prefix);
  int64_t end = 0;
  for (int64_t i = 0; i < read.num_documents(); ++i) {
    const data::TokenRange range = read.document(i);
    FUZZ_CHECK(range.begin == end && range.end >= end);
    end = range.end;
  }
  FUZZ_CHECK(end == read.num_tokens());
  data::check_tokens(read, 0);
}

}  // namespace piper::fuzz
