// metrics.jsonl and TensorBoard's event files as a crash may have left them: how far they are
// sound.
#include <piper/train/metrics.h>
#include <piper/train/tensorboard.h>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

// What is sound stays sound when the rest is cut off, for every step that a run may go on from.
template <class Reader>
void check(Reader read, std::string_view bytes) {
  for (const int64_t last_step : {int64_t{0}, int64_t{3}, int64_t{1} << 40}) {
    const files::SoundPart part = read(bytes, last_step);
    FUZZ_CHECK(part.kept <= part.sound && part.sound <= bytes.size());
    FUZZ_CHECK(part.damage.empty() == (part.sound == bytes.size()));
    FUZZ_CHECK(part.last_step >= 0 && part.last_step <= last_step);
    for (const char c : part.damage) FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    FUZZ_CHECK(part.damage.size() <= 2000);
    const files::SoundPart again = read(bytes.substr(0, part.kept), last_step);
    FUZZ_CHECK(again.damage.empty() && again.kept == part.kept);
    FUZZ_CHECK(again.last_step == part.last_step);
  }
}

}  // namespace

void fuzz(std::span<const std::byte> bytes) {
  check(train::sound_metrics, text_of(bytes));
  check(train::sound_events, text_of(bytes));
}

}  // namespace piper::fuzz
