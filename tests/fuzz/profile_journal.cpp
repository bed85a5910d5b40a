// The partial file of an interrupted profile: what is taken over is there again when it is written
// and read again.
#include <piper/base/json.h>
#include <piper/profile/profile_journal.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  static const Json measured_with{{"ranks", 2}};
  const profile::MeasuredPoints points =
      profile::read_points(std::string(text_of(bytes)), measured_with, "f");
  const std::string written = profile::to_text(points, measured_with);
  FUZZ_CHECK(profile::to_text(profile::read_points(written, measured_with, "f"), measured_with) ==
             written);
}

}  // namespace piper::fuzz
