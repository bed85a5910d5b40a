// libFuzzer's entry: https://llvm.org/docs/LibFuzzer.html
#include <piper/base/error.h>

#include <cstdio>
#include <cstdlib>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

constexpr size_t kMaxLine = 2000;  // a message is read by people, whatever the bytes were

// A problem is one line of bounded length without control characters: nothing from outside may steer a terminal.
void check_line(std::string_view line) {
  FUZZ_CHECK(!line.empty());
  if (line.size() > kMaxLine) promise_broken("a message is too long");
  for (const char c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
      promise_broken("a message holds a control character");
    }
}

}  // namespace

void promise_broken(std::string_view what) {
  std::fprintf(stderr, "promise broken: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace piper::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    piper::fuzz::fuzz(std::as_bytes(std::span(bytes, size)));
  } catch (const piper::InvalidInput& error) {
    for (const std::string& line : error.problems()) piper::fuzz::check_line(line);
  } catch (const piper::IoError& error) {
    piper::fuzz::check_line(error.what());
  }
  return 0;
}
