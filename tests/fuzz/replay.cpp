// Gives files to a fuzz target without libFuzzer, so that any compiler's sanitizers watch: each
// file as it is, cut off at every length (of large ones, at some), and changed at random
// (PIPER_FUZZ_CHANGES times a file, 200 by default; always the same changes). Usage:
// replay_<target> FILE|FOLDER...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

Bytes read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// In a buffer of its own, so that a byte too far is seen.
void give(const Bytes& bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes changed(Bytes bytes, std::mt19937& random) {
  const auto below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
  for (size_t i = below(8) + 1; i-- > 0 && !bytes.empty();) {
    const size_t at = below(bytes.size());
    switch (below(4)) {
      case 0:
        bytes[at] = static_cast<uint8_t>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<uint8_t>(1U << below(8));
        break;
      case 2:
        bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
        break;
      case 3: {
        const Bytes part(
            bytes.begin() + static_cast<ptrdiff_t>(at),
            bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + 1 + below(16))));
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(below(bytes.size())), part.begin(),
                     part.end());
        break;
      }
    }
  }
  return bytes;
}

size_t replay(const Bytes& bytes, int64_t num_changes) {
  constexpr size_t kCuts = 512;
  size_t count = 1;
  give(bytes);
  const size_t step = std::max<size_t>(1, bytes.size() / kCuts);
  for (size_t size = 0; size < bytes.size(); size += step, ++count)
    give(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)));
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same every time
  for (int64_t i = 0; i < num_changes; ++i, ++count) give(changed(bytes, random));
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const text = std::getenv("PIPER_FUZZ_CHANGES");
  const int64_t num_changes = text == nullptr ? 200 : std::atoll(text);
  size_t num_files = 0, num_inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<fs::path> files;
    if (fs::is_directory(argv[i]))
      for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
    else
      files.emplace_back(argv[i]);
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      ++num_files;
      num_inputs += replay(read(file), num_changes);
    }
  }
  if (num_files == 0) {
    std::fprintf(stderr, "replay: no files\n");
    return 2;
  }
  std::printf("%zu inputs made of %zu files\n", num_inputs, num_files);
  return 0;
}
