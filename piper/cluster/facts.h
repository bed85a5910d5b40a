// What a description claims, fact by fact, and where each claim comes from.
//
// A fact is named by its JSON path, levels by their name:
//   memory_bytes   compute.bf16.peak_flops_per_second   levels.node.latency_seconds numbers.<name>
// A source is given for a fact or for everything below a path: "levels.node" speaks for all five
// figures of that level, "levels" for all levels. An assumption is a source too, and says so:
// "assumption: ...".
#pragma once

#include <piper/cluster/cluster.h>

#include <string>
#include <vector>

namespace piper::cluster {

// Paths of all facts that `cluster` states, in the order of the document. Figures that say "not
// known" or "not counted" (0, an empty curve) are no facts.
std::vector<std::string> stated_facts(const Cluster& cluster);

// The source that speaks for `fact`: the longest matching path. nullptr when there is none.
const Source* source_of(const Cluster& cluster, const std::string& fact);

// One line for each stated fact without a source and each source that speaks for no stated fact.
// Required to be empty of the built-ins; a measured description of one's own machine may be silent.
std::vector<std::string> problems_of_sources(const Cluster& cluster);

// "assumption: ..." rather than something measured or published.
bool is_assumption(const Source& source);

}  // namespace piper::cluster
