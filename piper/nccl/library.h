// The functions of NCCL and of the CUDA runtime that are used here, looked up when they are needed:
// the program is linked with neither and runs where they are not.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string>

namespace piper::nccl {

struct LibraryPaths {
  std::string nccl;          // "libnccl.so.2" where empty
  std::string cuda_runtime;  // "libcudart.so.13", then "libcudart.so.12" where empty
};
// PIPER_NCCL and PIPER_CUDART.
LibraryPaths paths_from_environment();

// Immutable, thread-safe. Neither library is ever closed: their threads outlive it.
class Library {
 public:
  // Throws InvalidInput saying which library or function is missing.
  explicit Library(const LibraryPaths& paths = paths_from_environment());

  // Throws InvalidInput where there is no CUDA device: with the runtime's reason.
  int num_devices() const;
  std::string nccl_version() const;  // "2.27.7"

  // CommError "cudaStreamCreate: out of memory".
  void check(cudaError_t status, const char* what) const;
  // ncclInProgress is none.
  void check(ncclResult_t status, const char* what) const;

  struct Cuda {
    cudaError_t (*get_device_count)(int*);
    cudaError_t (*set_device)(int);
    cudaError_t (*malloc)(void**, size_t);
    cudaError_t (*free)(void*);
    cudaError_t (*memcpy)(void*, const void*, size_t, cudaMemcpyKind);
    cudaError_t (*memcpy_async)(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
    cudaError_t (*stream_create_with_flags)(cudaStream_t*, unsigned);
    cudaError_t (*stream_destroy)(cudaStream_t);
    cudaError_t (*stream_synchronize)(cudaStream_t);
    cudaError_t (*stream_wait_event)(cudaStream_t, cudaEvent_t, unsigned);
    cudaError_t (*event_create_with_flags)(cudaEvent_t*, unsigned);
    cudaError_t (*event_destroy)(cudaEvent_t);
    cudaError_t (*event_record)(cudaEvent_t, cudaStream_t);
    cudaError_t (*event_query)(cudaEvent_t);
    cudaError_t (*launch_host_func)(cudaStream_t, cudaHostFn_t, void*);
    const char* (*get_error_string)(cudaError_t);
  };
  struct Nccl {
    ncclResult_t (*get_version)(int*);
    ncclResult_t (*get_unique_id)(ncclUniqueId*);
    ncclResult_t (*comm_init_rank_config)(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
    ncclResult_t (*comm_get_async_error)(ncclComm_t, ncclResult_t*);
    ncclResult_t (*comm_finalize)(ncclComm_t);
    ncclResult_t (*comm_destroy)(ncclComm_t);
    ncclResult_t (*comm_abort)(ncclComm_t);
    ncclResult_t (*group_start)();
    ncclResult_t (*group_end)();
    ncclResult_t (*send)(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*receive)(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    const char* (*get_error_string)(ncclResult_t);
    const char* (*get_last_error)(ncclComm_t);
  };
  Cuda cuda{};
  Nccl nccl{};
};

}  // namespace piper::nccl
