#include <bench/nccl.h>
#include <piper/base/error.h>

namespace piper::cli {

std::function<std::unique_ptr<comm::DeviceExchanges>(const comm::Transport&)> open_nccl(
    comm::World&, size_t) {
  throw InvalidInput(
      "--transport nccl: this piper was built without the headers of NCCL and CUDA; allowed: "
      "plain, "
      "or a build where cmake finds nccl.h and cuda_runtime_api.h");
}

}  // namespace piper::cli
