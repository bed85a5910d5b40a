// When experts move: what the user asked for.
//
//   off               placements stay
//   threshold:X       a layer whose busiest rank has more than X times the mean is brought below it
//                     with as few migrations as the search finds (pair_search.h)
//   price             a layer is rebalanced where the seconds that this saves until the next
//                     decision exceed what moving costs (rebalance.h)
//   replicate         the slots of redundant experts (Strategy::redundant_experts) hold copies of
//                     those that make the ranks most even (copies.h); homes stay
//   shadow            they hold the experts with most rows, on every rank
//   random:F          the part F of every layer's experts is exchanged, whatever the load: for
//                     measuring what moving costs and for proving that it changes nothing else
#pragma once

#include <piper/base/traits.h>

#include <array>
#include <cstdint>
#include <string>

namespace piper::balance {

enum class RebalanceKind : uint8_t { kOff, kThreshold, kPrice, kReplicate, kShadow, kRandom };
struct RebalanceKindTraits {
  RebalanceKind value;
  const char* name;
  // The number behind the colon: what it may be; no number where both are 0.
  double least = 0, largest = 0;
  bool copies = false;  // chooses copies, and moves no home
};
inline constexpr std::array kRebalanceKindTraits{
    RebalanceKindTraits{RebalanceKind::kOff, "off"},
    RebalanceKindTraits{RebalanceKind::kThreshold, "threshold", 1, 1e6},
    RebalanceKindTraits{RebalanceKind::kPrice, "price"},
    RebalanceKindTraits{.value = RebalanceKind::kReplicate, .name = "replicate", .copies = true},
    RebalanceKindTraits{.value = RebalanceKind::kShadow, .name = "shadow", .copies = true},
    RebalanceKindTraits{RebalanceKind::kRandom, "random", 0.001, 1}};
static_assert(are_in_order(kRebalanceKindTraits));
constexpr const auto& rows(RebalanceKind) { return kRebalanceKindTraits; }

struct RebalancePolicy {
  RebalanceKind kind = RebalanceKind::kOff;
  double number = 0;         // X or F
  int64_t every = 50;        // steps between two decisions, and of the window they look at
  int64_t budget_bytes = 0;  // that one decision may move, over all layers; 0 = no limit
  bool is_on() const { return kind != RebalanceKind::kOff; }
  bool operator==(const RebalancePolicy&) const = default;
};

// Kind and number from the text above. Throws InvalidInput (one line).
RebalancePolicy parse_rebalance(const std::string& text, const std::string& source);
std::string to_text(const RebalancePolicy& policy);  // "threshold:1.3"

// Why it cannot be followed with so many slots for copies of experts (Strategy::redundant_experts);
// "" where it can.
std::string contradiction(const RebalancePolicy& policy, int64_t redundant_experts);

}  // namespace piper::balance
