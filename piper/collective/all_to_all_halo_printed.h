// HALO as the paper prints it (Piper, Algorithm 1 and eq. 13): every buffer and every copy of the
// print is there, so that its price is the print's.
//
//   phase I    P1  [R, D]      := rows of the own node, from each of its members
//   phase II   F2s [M, R, D]   := packed rows for the M remote nodes (INDEXSELECT)
//              F2r [M, R, D]   := from the counterpart in each, R rows; WAITALL
//   phase III  F3s [R, M, D]   := F2r transposed: row l is all remote data for member l
//              F3r [R, M, D]   := all-to-all inside the node
//   output                     := P1 and F3r transposed back
//
// Even nodes of R members, M remote ones, D units a pair: M messages of R D cross per member, R - 1
// of D and R - 1 of M D stay inside; scratch is 4 M R D + R D, besides the output. Line 18 of the
// print says "[R, M]": the row is M D wide.
//
// Uneven nodes: the counterpart is the member in the same place modulo the node's size, so that a
// member may take in rows of several members of one node, or of none. Uneven counts: the
// same buffers, as large as the rows in them.
//
// Asks for the counts of halo_counts_told. With a single node this is all_to_all_node_aware,
// without a copy.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_to_all_halo_printed(int64_t member, const Topology& topology, const CountOf& count,
                                    PhaseOne phase_one = PhaseOne::kUnderTwo);

}  // namespace piper::collective
