#include <piper/collective/all_to_all_halo_switch.h>

namespace piper::collective {

size_t halo_switch_level(const Topology& topology) { return topology.unit.size() > 1 ? 1 : 0; }

MemberSteps all_to_all_halo_switch(int64_t member, const Topology& topology, const CountOf& count,
                                   int64_t chunk, PhaseOne phase_one) {
  return all_to_all_halo_chunked(member, topology, count,
                                 {chunk, phase_one, halo_switch_level(topology)});
}

}  // namespace piper::collective
