// Where every field of a strategy goes in an export: none is lost without a word. A field that is
// added to Strategy, Mesh or Capacity does not compile here until it has a name, and no exporter
// until it is placed (kPlaces in fields.cpp).
#pragma once

#include <piper/export/export.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <string>

namespace piper::exporting {

struct Field {
  const char* name;
  std::string value;  // as files have it; "" where a strategy's default holds
};
// 26 fields of Strategy beside mesh and capacity, 7 of Mesh, 3 of Capacity.
inline constexpr size_t kNumFields = 36;
using Fields = std::array<Field, kNumFields>;

// In the order of the structs.
Fields fields_of(const strategy::Strategy& strategy);

// What becomes of a field:
//   kWritten   the text, the profile's offers or the rules say it
//   kNoted     it is another's choice there: a line of `differs` where it is no default
//   kRefused   it cannot be had: a line of `cannot` where it is no default
//   kSilent    it says nothing of the run (names, what was predicted)
enum class Place : uint8_t { kWritten, kNoted, kRefused, kSilent };

Place place_of(Trainer trainer, size_t field);

// Adds the lines of the fields that are noted or refused.
void place_fields(Trainer trainer, const strategy::Strategy& strategy, Exported& exported);

}  // namespace piper::exporting
