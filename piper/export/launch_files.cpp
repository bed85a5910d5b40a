#include <fmt/format.h>
#include <piper/export/launch_files.h>

namespace piper::exporting {

std::string open_mpi_rankfile(std::span<const RankHost> ranks, int64_t cores_per_slot) {
  std::string text = "# written by piper\n";
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t first = ranks[rank].slot * cores_per_slot;
    text += fmt::format("rank {}={} slot={}", rank, ranks[rank].host, first);
    text += cores_per_slot > 1 ? fmt::format("-{}\n", first + cores_per_slot - 1) : "\n";
  }
  return text;
}

std::string slurm_hostfile(std::span<const RankHost> ranks) {
  std::string text = "# written by piper\n";
  for (const RankHost& rank : ranks) text += rank.host + "\n";
  return text;
}

}  // namespace piper::exporting
