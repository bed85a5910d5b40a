// In which order the units of a level (nodes, for HALO by switch group switch groups) address each
// other: racks first.
//
// Exchanges send to remote units in some rotation, so that at every step each unit speaks to one
// other and is spoken to by one other. The plain rotation, unit + 1, + 2, ..., does that too, but
// units stand rack by rack: at most steps all units of a rack speak to the same other rack. Where
// racks are joined by a bundle of links for each pair (minimal routing in a Dragonfly), one bundle
// of a rack works and the others stand idle. Here the units of a rack speak to different racks:
//
//   3 racks of 3, who speaks to whom              plain, + 3          racks first, a = 1, b = 1
//
//   rack A   A0 A1 A2                             A0 -> B0            A0 -> B1
//   rack B   B0 B1 B2                             A1 -> B1            A1 -> C2
//   rack C   C0 C1 C2                             A2 -> B2            A2 -> A0
//                                                 B0 -> C0            B0 -> C1
//                                                 B1 -> C1            B1 -> A2
//                                                 ...                 ...
//   units of A on the bundle to B                 3                   1
//
// C racks of J units: unit j of rack c addresses, at step (a, b), unit j + b of rack c + a + j (the
// one modulo J, the other modulo C). For 0 < b < J and 0 <= a < C these are permutations, and every
// unit in another place is met once. Units in the same place, b = 0, would meet themselves, each at
// another a; there unit j of rack c addresses rack c + 1 + (a + j modulo C - 1), a < C - 1. So all
// N - 1 steps are permutations without a fixed point: first those of b = 0, then b = 1, ... From
// b = 1 on a unit speaks to its own rack once in C steps, the units of a rack at different ones
// while J <= C. Where J < C, j C / J stands for j: no bundle is used at J steps in a row, and then
// by nobody.
//
//   at most so many of a rack's units speak to the same other rack at one step
//   plain                    J
//   b > 0                    ceil(J / C)
//   b = 0                    ceil(J / (C - 1))
//
// More levels: inside of racks, `j + b` is replaced by step b of the same order among the rack's
// units, whose racks are the units of the next level in. One rack, or none known, leaves the plain
// rotation, and so do racks of one unit.
//
// Racks filled unevenly have the order of a grid: units stand in its equal rows rack by rack, and a
// rack begins anywhere in one. Two or three units of a rack then share a bundle where one would do.
// Where the number of units is no product of rows near the racks' size (primes), units stand on a
// ring, scattered, and address the next one on it, then the one after: some four of eight share a
// bundle. Both are permutations at every step. (A grid with empty cells is none: who passes one by
// is a step ahead of the others, which among 13 nodes cost 8 % where NICs are what is narrow.)
//
// Levels whose units hold different numbers of units are not looked at further in. Units of all
// levels nest (topology.h): rail switches, which join NICs of many nodes, are none.
//
// Exchanges all use it, without a name of its own: where bundles are wide, or uplinks are a rack's
// and not a pair's, it is as fast as the plain rotation or faster, but for 2 % here and there of
// exchanges by leaders and over three levels (docs/collectives.md).
#pragma once

#include <cstdint>
#include <vector>

namespace piper::collective {

class UnitOrder {
 public:
  UnitOrder() = default;
  // racks[level][unit]: the unit of a further level in which a unit lies, the next level first;
  // numbers as in a Topology. O(units log(units)).
  UnitOrder(int64_t num_units, const std::vector<std::vector<int32_t>>& racks);

  // Steps are numbered 0 .. num_steps() - 1: one less than there are units.
  int64_t num_steps() const;
  // At which `from` addresses `to`, another unit.
  int64_t step(int64_t from, int64_t to) const;
  // The others in the order in which `unit` addresses them, and in which they address it.
  std::vector<int32_t> targets(int64_t unit) const;
  std::vector<int32_t> sources(int64_t unit) const;

 private:
  std::vector<int32_t> cell_;   // by unit
  std::vector<int32_t> sizes_;  // of the grid, outermost first: cells of each row
  std::vector<int32_t> below_;  // cells in one of them
};

}  // namespace piper::collective
