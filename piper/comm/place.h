// Where the ranks of a run sit, as whoever started the processes says through the environment.
//
// | variable | |
// |---|---|
// | PIPER_NODE   | name of the process's node; default: the host's name |
// | PIPER_NIC    | the NIC of its node through which its ranks speak: 0, 1, ...; default 0. Its address is PIPER_INTERFACE, which the TCP wire listens on and calls from |
// | PIPER_GROUPS | names of what the node is in, innermost first: "switch 3, rack 1"; default: nothing is known |
#pragma once

#include <piper/collective/topology.h>
#include <piper/comm/launch.h>
#include <piper/comm/world.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::comm {

struct Place {
  std::string node;
  int32_t nic = 0;
  std::vector<std::string> groups;  // innermost first
};

// This process's place. Throws InvalidInput naming the variable that is malformed.
Place place_from(const LookUp& look_up = from_environment);

// The topology of all ranks of `world`, the same in every process, given each process's own place:
// units are numbered as they first appear in the order of ranks. All processes call it, as
// World::share. Throws InvalidInput, in all processes alike, when a node is in two groups or the
// processes name different numbers of groups; CommError when a process does not come.
collective::Topology gather_topology(World& world, const Place& mine);

}  // namespace piper::comm
