// What --help says of an enumeration: its values as the rows of its traits have them, so that a new
// one shows up by itself.
#pragma once

#include <piper/base/traits.h>
#include <piper/strategy/runnable.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <string_view>
#include <vector>

namespace piper::cli {

// "fp32, bf16 or fp64": `between` two of them, `before_last` in front of the last.
std::string in_a_sentence(const std::vector<std::string>& words, const char* between = ", ",
                          const char* before_last = " or ");

// The names of the values that `keep` keeps, all by default.
inline constexpr auto kAllRows = [](const auto&) { return true; };
template <HasTraits Enum, class Keep = decltype(kAllRows)>
std::vector<std::string> names_where(Keep keep = kAllRows) {
  std::vector<std::string> names;
  for (const auto& row : rows(Enum{}))
    if (keep(row)) names.emplace_back(row.name);
  return names;
}

// "flat, bruck or 2d".
template <HasTraits Enum, class Keep = decltype(kAllRows)>
std::string one_of_names(Keep keep = kAllRows) {
  return in_a_sentence(names_where<Enum>(keep));
}

// "ready, as soon as a layer's are there; or end, behind the last backward".
template <HasTraits Enum, class Keep = decltype(kAllRows)>
std::string one_of_explained(Keep keep = kAllRows) {
  std::vector<std::string> phrases;
  for (const auto& row : rows(Enum{}))
    if (keep(row))
      phrases.push_back(std::string_view(row.help).empty()
                            ? std::string(row.name)
                            : std::string(row.name) + ", " + row.help);
  return in_a_sentence(phrases, "; ", "; or ");
}

// Rows of traits that a flag takes, or that another flag is about.
inline constexpr auto kRuns = [](const auto& row) { return strategy::runs(row.value); };
inline constexpr auto kIsCut = [](const strategy::AllToAllTraits& row) { return row.is_cut; };
// "halo-switch, halo and halo-dedup", whose messages --all-to-all-chunk cuts.
std::string cut_exchanges();
// "of --moe-schedule chunked, parm-s2 and monta-o2: chunks of a rank's tokens; of fastermoe: groups of
// the ranks of ep".
std::string what_moe_chunks_are();

}  // namespace piper::cli
