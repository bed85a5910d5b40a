#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/balance/rebalance_policy.h>
#include <piper/base/error.h>

#include <charconv>
#include <string_view>
#include <vector>

namespace piper::balance {

RebalancePolicy parse_rebalance(const std::string& text, const std::string& source) {
  const size_t colon = text.find(':');
  const std::string_view word = std::string_view(text).substr(0, colon);
  const auto kind = find_by_name<RebalanceKind>(word);
  const auto refuse = [&] {
    std::vector<std::string> allowed;
    for (const RebalanceKindTraits& row : kRebalanceKindTraits)
      allowed.push_back(row.largest > 0 ? fmt::format("{}:X with X from {} to {}", row.name,
                                                      row.least, row.largest)
                                        : row.name);
    throw InvalidInput(
        fmt::format("{} is '{}'; allowed: {}", source, text, fmt::join(allowed, ", ")));
  };
  if (!kind) refuse();
  const RebalanceKindTraits& row = traits(*kind);
  if ((row.largest > 0) != (colon != std::string::npos)) refuse();
  RebalancePolicy policy{.kind = *kind};
  if (row.largest > 0) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, policy.number);
    if (error != std::errc() || stop != end ||
        !(policy.number >= row.least && policy.number <= row.largest))
      refuse();
  }
  return policy;
}

std::string to_text(const RebalancePolicy& policy) {
  const RebalanceKindTraits& row = traits(policy.kind);
  return row.largest > 0 ? fmt::format("{}:{}", row.name, policy.number) : row.name;
}

std::string contradiction(const RebalancePolicy& policy, int64_t redundant_experts) {
  if (!policy.is_on()) return "";
  const bool copies = traits(policy.kind).copies;
  if (copies && redundant_experts == 0)
    return fmt::format(
        "--rebalance is {}, but no slots hold copies of experts; allowed: off, threshold, "
        "price and random, or a strategy with --redundant-experts",
        to_text(policy));
  if (!copies && redundant_experts > 0)
    return fmt::format(
        "--rebalance is {} beside --redundant-experts {}: homes of experts that have copies stay; "
        "allowed: off, replicate and shadow",
        to_text(policy), redundant_experts);
  return "";
}

}  // namespace piper::balance
