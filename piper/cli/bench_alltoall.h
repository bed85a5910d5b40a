// What `piper bench alltoall` measures: the exchange of every rank with every other over the local
// transport, in the columns of nccl-tests, beside the time of a plain copy of as many bytes by as
// many ranks at once: whatever the local transport does, it copies each byte once.
#pragma once

#include <piper/base/json.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::cli {

struct AllToAllOptions {
  int64_t num_ranks = 4;
  int64_t min_bytes = 1 << 10;  // a rank's whole buffer, its own part included, as in nccl-tests
  int64_t max_bytes = 16 << 20;
  int64_t factor = 4;  // between sizes; >= 2
  double budget_seconds = 10;
};

struct AllToAllRow {
  int64_t bytes = 0;  // a multiple of 4 * num_ranks
  int64_t count = 0;  // fp32 elements for each rank
  double seconds = 0;
  double algorithm_bytes_per_second = 0;  // bytes / seconds
  double bus_bytes_per_second = 0;        // times (n - 1) / n: without a rank's part for itself
  double copy_seconds = 0;                // the limit
  int64_t num_wrong = 0;                  // bytes that arrived wrong
  double over_limit() const { return copy_seconds > 0 ? seconds / copy_seconds : 0; }
};

// `progress` is called with the part done, 0 .. 1, from a rank's thread. Throws CommError.
std::vector<AllToAllRow> bench_alltoall(const AllToAllOptions& options,
                                        const std::function<void(double)>& progress);

std::string to_text(const AllToAllOptions& options, const std::vector<AllToAllRow>& rows);
Json to_json(const AllToAllOptions& options, const std::vector<AllToAllRow>& rows);

}  // namespace piper::cli
