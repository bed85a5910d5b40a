// The partial file of an interrupted profile: what is taken over is there again when the file is
// read again.
#include <piper/base/json.h>
#include <piper/runtime/profile_journal.h>
#include <unistd.h>

#include <fstream>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

namespace fs = std::filesystem;

struct File {
  fs::path path = fs::temp_directory_path() / ("piper-fuzz-journal-" + std::to_string(::getpid()));
  ~File() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

}  // namespace

void fuzz(std::span<const std::byte> bytes) {
  static const File file;
  const Json measured_with{{"ranks", 2}};
  std::ofstream(file.path, std::ios::binary) << text_of(bytes);
  const runtime::ProfileJournal first(file.path, measured_with);
  const runtime::ProfileJournal second(file.path, measured_with);
  FUZZ_CHECK(second.num_restored() == first.num_restored());
}

}  // namespace piper::fuzz
