// MoNTA's rule for long contexts ("Cluster Expansion"): whether CP groups lie across EP groups
// (horizontal, a network of cp x ep nodes) or along them (vertical, max(cp, ep) nodes).
// Piper's two meshes lie over the same ranks of a stage (strategy/rank_layout.h), which is the
// vertical one whatever cp and ep are. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace piper::studies::paper::monta {

// kSilent: cp < ep, and the switches do not reach cp x ep nodes; the paper does not say what then.
enum class Expansion : uint8_t { kHorizontal, kVertical, kSilent };

// `switch_nodes`: that one switched network connects.
Expansion expansion(int64_t cp, int64_t ep, int64_t switch_nodes);
// Nodes that must be connected.
int64_t connected_nodes(Expansion expansion, int64_t cp, int64_t ep);
// The rule's sentence for this case.
std::string why(int64_t cp, int64_t ep, int64_t switch_nodes);

}  // namespace piper::studies::paper::monta
