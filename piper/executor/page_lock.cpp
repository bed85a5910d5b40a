#include <piper/executor/loaded_function.h>
#include <piper/executor/page_lock.h>

namespace piper::executor {
namespace {

// Both runtimes have the same functions under two names; 0 is success.
struct Runtime {
  int (*lock)(void*, size_t, unsigned int) = nullptr;
  int (*unlock)(void*) = nullptr;
  int (*forget_error)() = nullptr;
};

const Runtime& runtime() {
  static const Runtime found = [] {
    Runtime cuda, hip;
    if (find_loaded(cuda.lock, "cudaHostRegister") &&
        find_loaded(cuda.unlock, "cudaHostUnregister") &&
        find_loaded(cuda.forget_error, "cudaGetLastError"))
      return cuda;
    if (find_loaded(hip.lock, "hipHostRegister") && find_loaded(hip.unlock, "hipHostUnregister") &&
        find_loaded(hip.forget_error, "hipGetLastError"))
      return hip;
    return Runtime{};
  }();
  return found;
}

bool lock_pages(void* pages, size_t bytes) {
  constexpr unsigned int kForAllDevices = 1;  // cudaHostRegisterPortable, hipHostRegisterPortable
  if (runtime().lock == nullptr) return false;
  if (runtime().lock(pages, bytes, kForAllDevices) == 0) return true;
  runtime().forget_error();  // or the next check of a kernel would report it
  return false;
}

void unlock_pages(void* pages) {
  if (runtime().unlock(pages) != 0) runtime().forget_error();
}

}  // namespace

PageLock runtime_page_lock() { return {.lock = lock_pages, .unlock = unlock_pages}; }

}  // namespace piper::executor
