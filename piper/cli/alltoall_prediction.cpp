#include <piper/cli/alltoall_prediction.h>

namespace piper::cli {

std::optional<double> predicted_seconds(const comm::Exchange&, const collective::Topology&, int64_t,
                                        const cluster::Cluster&) {
  return std::nullopt;
}

}  // namespace piper::cli
