#include <fmt/format.h>
#include <piper/base/error.h>
#include <studies/paper/monta_expansion.h>

#include <algorithm>

namespace piper::studies::paper::monta {

Expansion expansion(int64_t cp, int64_t ep, int64_t switch_nodes) {
  if (cp >= ep) return Expansion::kVertical;
  return switch_nodes >= cp * ep ? Expansion::kHorizontal : Expansion::kSilent;
}

int64_t connected_nodes(Expansion expansion, int64_t cp, int64_t ep) {
  switch (expansion) {
    case Expansion::kHorizontal:
      return cp * ep;
    case Expansion::kVertical:
    case Expansion::kSilent:  // what is possible
      return std::max(cp, ep);
  }
  PIPER_CHECK(false, "no such expansion");
}

std::string why(int64_t cp, int64_t ep, int64_t switch_nodes) {
  switch (expansion(cp, ep, switch_nodes)) {
    case Expansion::kHorizontal:
      return fmt::format(
          "horizontal: cp {} is less than ep {}, and {} nodes on a switch hold {} x {}", cp, ep,
          switch_nodes, cp, ep);
    case Expansion::kVertical:
      return fmt::format("vertical: cp {} is at least ep {}, so {} nodes suffice", cp, ep,
                         std::max(cp, ep));
    case Expansion::kSilent:
      return fmt::format(
          "the rule is silent: cp {} is less than ep {}, and {} nodes on a switch do not hold {} x "
          "{}",
          cp, ep, switch_nodes, cp, ep);
  }
  PIPER_CHECK(false, "no such expansion");
}

}  // namespace piper::studies::paper::monta
