// What the benches of steps over several ranks share (`piper bench pipeline`, `piper bench moe
// --ranks 2`): the world they run in, their rounds, what they print, and the partner that scripts
// ask.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/command.h>
#include <piper/comm/world.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace piper::train {
class StepBench;
}

namespace piper::cli {

struct WorldBenchFlags {
  int64_t rounds = 9, steps = 4;
  std::string save, cluster;
  bool json = false, serve = false;
};

// Declares --steps, --save and --cluster; --rounds, --json and --serve are the bench's own.
void add_world_bench_flags(Subcommand command, WorldBenchFlags& flags);

// Products of fp32 by the libraries that --cluster found the faster ones, or as nn/product.h
// decides without it. Throws InvalidInput where the file does not say.
void take_product_choice(const WorldBenchFlags& flags);

// Problems of the flags, to be shown together with the bench's own.
void check_count(const char* flag, int64_t value, int64_t max, std::vector<std::string>& problems);

// The processes that a launcher started, or threads of this one. Throws InvalidInput, CommError.
std::unique_ptr<comm::World> bench_world(int64_t num_ranks);
// As many ranks as processes were launched; 1 without a launcher.
int64_t num_launched();

// A family of benches that differ in the rows (tokens) of a rank's micro-batch.
class WorldBench {
 public:
  struct Case {
    std::unique_ptr<train::StepBench> bench;
    // From each rank's seconds for a micro-batch's products to the least that a step can take.
    std::function<double(const std::vector<double>&)> limit;
    int64_t num_micro_batches = 1;
  };
  using Make = std::function<Case(comm::World& world, int64_t rows)>;

  WorldBench(std::unique_ptr<comm::World> world, Make make);
  ~WorldBench();
  WorldBench(const WorldBench&) = delete;
  WorldBench& operator=(const WorldBench&) = delete;

  // The median over the rounds, the limit measured in each of them.
  struct Times {
    double step_seconds = 0, limit_seconds = 0, ratio = 0, lowest_ratio = 0, highest_ratio = 0;
  };
  Times measure(int64_t rows, int64_t rounds, int64_t steps);

  // FOLDER/rank<r>.safetensors: train::BenchRecord, the loss as metadata.
  void save(int64_t rows, const std::string& folder);

  // Answers lines of standard input until it ends: "steps ROWS N" and "limit ROWS N" by the seconds
  // of a step, "save ROWS FOLDER" by "saved". Every process calls it.
  void serve();

  bool prints() const { return world_->process() == 0; }
  // "2 ranks, Open MPI", "2 ranks, threads of one process"
  std::string describe() const;

 private:
  Case& at(int64_t rows);
  double step_seconds(int64_t rows, int64_t steps);
  double limit_seconds(int64_t rows, int64_t steps);
  std::string answer(const std::string& line);

  std::unique_ptr<comm::World> world_;
  Make make_;
  std::map<int64_t, Case> cases_;
};

Json to_json(const WorldBench::Times& times);
// "  step  12.3 ms\n  its products alone  ..."
std::string to_text(const WorldBench::Times& times, int64_t rounds);

}  // namespace piper::cli
