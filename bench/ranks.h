// What the benches of exchanges between real ranks ask alike: how many ranks, as threads or as the
// processes of a launcher, and how long they are timed.
#pragma once

#include <piper/comm/launch.h>
#include <piper/comm/world.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct BenchRanksFlags {
  std::string ranks = "4", seconds = "10", rounds = "1", repeats = "1";
};

struct BenchRanks {
  int64_t num_ranks = 1;
  std::optional<comm::Launch> launch;  // absent: ranks are threads of this process
  int64_t min_rounds = 1, max_rounds = 25, min_repeats = 1;
  double budget_seconds = 10;

  std::string transport() const;  // "local", "mpi", "tcp"
  // The processes of the launcher, met, or this one alone. Throws CommError.
  std::unique_ptr<comm::World> world() const;
};

// Under a launcher its processes are the ranks, whatever --ranks says. What is wrong goes into
// `problems`, a line each.
BenchRanks read_bench_ranks(const BenchRanksFlags& flags, std::vector<std::string>* problems);

// Whether all processes are on one host, whose clock they share. All of them call it.
bool share_a_clock(comm::World& world);

}  // namespace piper::cli
