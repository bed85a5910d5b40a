#include <dlfcn.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nccl/library.h>

#include <cstdlib>
#include <vector>

namespace piper::nccl {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// The first that opens.
void* open(const std::string& what, const std::string& variable_name,
           const std::vector<std::string>& paths) {
  std::string reasons;
  for (const std::string& path : paths) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return library;
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ",
                           dlerror());  // NOLINT(concurrency-mt-unsafe)
  }
  throw InvalidInput(
      fmt::format("{} cannot be opened: {}; allowed: a machine that has it, or {} "
                  "with its path",
                  what, reasons, variable_name));
}

// Looks functions up in one library.
class Symbols {
 public:
  Symbols(void* library, std::string what) : library_(library), what_(std::move(what)) {}

  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr)
      throw InvalidInput(fmt::format("{} has no {}: it is too old or another one", what_, name));
  }

 private:
  void* library_;
  std::string what_;
};

void find_cuda(const Symbols& symbols, Library::Cuda& cuda) {
  symbols.find("cudaGetDeviceCount", cuda.get_device_count);
  symbols.find("cudaSetDevice", cuda.set_device);
  symbols.find("cudaMalloc", cuda.malloc);
  symbols.find("cudaFree", cuda.free);
  symbols.find("cudaMemcpy", cuda.memcpy);
  symbols.find("cudaMemcpyAsync", cuda.memcpy_async);
  symbols.find("cudaStreamCreateWithFlags", cuda.stream_create_with_flags);
  symbols.find("cudaStreamDestroy", cuda.stream_destroy);
  symbols.find("cudaStreamSynchronize", cuda.stream_synchronize);
  symbols.find("cudaStreamWaitEvent", cuda.stream_wait_event);
  symbols.find("cudaEventCreateWithFlags", cuda.event_create_with_flags);
  symbols.find("cudaEventDestroy", cuda.event_destroy);
  symbols.find("cudaEventRecord", cuda.event_record);
  symbols.find("cudaEventQuery", cuda.event_query);
  symbols.find("cudaLaunchHostFunc", cuda.launch_host_func);
  symbols.find("cudaGetErrorString", cuda.get_error_string);
}

void find_nccl(const Symbols& symbols, Library::Nccl& nccl) {
  symbols.find("ncclGetVersion", nccl.get_version);
  symbols.find("ncclGetUniqueId", nccl.get_unique_id);
  symbols.find("ncclCommInitRankConfig", nccl.comm_init_rank_config);
  symbols.find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  symbols.find("ncclCommFinalize", nccl.comm_finalize);
  symbols.find("ncclCommDestroy", nccl.comm_destroy);
  symbols.find("ncclCommAbort", nccl.comm_abort);
  symbols.find("ncclGroupStart", nccl.group_start);
  symbols.find("ncclGroupEnd", nccl.group_end);
  symbols.find("ncclSend", nccl.send);
  symbols.find("ncclRecv", nccl.receive);
  symbols.find("ncclGetErrorString", nccl.get_error_string);
  symbols.find("ncclGetLastError", nccl.get_last_error);
}

}  // namespace

LibraryPaths paths_from_environment() { return {variable("PIPER_NCCL"), variable("PIPER_CUDART")}; }

Library::Library(const LibraryPaths& paths) {
  std::vector<std::string> runtimes{"libcudart.so.13", "libcudart.so.12"};
  if (!paths.cuda_runtime.empty()) runtimes = {paths.cuda_runtime};
  find_cuda({open("the CUDA runtime", "PIPER_CUDART", runtimes), "the CUDA runtime"}, cuda);
  const std::string path = paths.nccl.empty() ? "libnccl.so.2" : paths.nccl;
  find_nccl({open("NCCL", "PIPER_NCCL", {path}), "NCCL"}, nccl);
}

int Library::num_devices() const {
  int num = 0;
  const cudaError_t status = cuda.get_device_count(&num);
  if (status != cudaSuccess || num < 1)
    throw InvalidInput(fmt::format("there is no CUDA device here{}",
                                   status == cudaSuccess
                                       ? std::string()
                                       : fmt::format(": {}", cuda.get_error_string(status))));
  return num;
}

std::string Library::nccl_version() const {
  int version = 0;
  check(nccl.get_version(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void Library::check(cudaError_t status, const char* what) const {
  if (status != cudaSuccess)
    throw CommError(fmt::format("{}: {}", what, cuda.get_error_string(status)));
}

void Library::check(ncclResult_t status, const char* what) const {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const std::string last = nccl.get_last_error(nullptr);
  throw CommError(fmt::format("{}: {}{}", what, nccl.get_error_string(status),
                              last.empty() ? "" : fmt::format(" ({})", last)));
}

}  // namespace piper::nccl
