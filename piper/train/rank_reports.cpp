#include <piper/train/process_agreement.h>
#include <piper/train/rank_reports.h>

#include <cstring>

namespace piper::train {

void RankReports::gather_speed(comm::Transport& transport) {
  const Rank rank = transport.rank();
  const std::vector<std::string> parts =
      gather(transport, kGatherKeys + 4, run_.is_first() ? "" : speed_.part_of(rank),
             run_.request.options.timeout_seconds);
  for (size_t r = 0; r < parts.size(); ++r)
    if (!parts[r].empty()) speed_.add_part(Rank(static_cast<int64_t>(r)), parts[r]);
}

void RankReports::gather_all(comm::Transport& transport, int64_t first_step) {
  const Rank rank = transport.rank();
  const double timeout = run_.request.options.timeout_seconds;
  gather_speed(transport);
  if (rank == Rank(0)) recorder_.set_slowdowns(first_step, speed_.slowdowns());
  const int64_t step =
      broadcast(transport, kGatherKeys, rank == Rank(0) ? recorder_.median_step() : 0, timeout);
  gather_step(transport, kGatherKeys + 1, step);
}

void RankReports::gather_step(comm::Transport& transport, uint64_t key, int64_t step) {
  const Rank rank = transport.rank();
  std::string mine;
  if (!run_.is_first()) {
    mine.assign(reinterpret_cast<const char*>(&start_seconds_[rank.index()]), sizeof(double));
    mine += recorder_.part_of(rank, step);
  }
  const std::vector<std::string> parts =
      gather(transport, key, mine, run_.request.options.timeout_seconds);
  const int64_t ranks_per_process = run_.world.size() / run_.world.num_processes();
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].empty()) continue;
    double start = 0;
    std::memcpy(&start, parts[r].data(), sizeof(start));
    // Hosts have clocks of their own; all ranks left the first barrier at about the same time.
    const bool same_clock = hosts_[r / static_cast<size_t>(ranks_per_process)] == hosts_.front();
    recorder_.add_part(Rank(static_cast<int64_t>(r)), step, parts[r].substr(sizeof(start)),
                       same_clock ? 0 : start_seconds_[0] - start);
  }
}

}  // namespace piper::train
