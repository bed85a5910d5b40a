// Preloaded by vector_math_once.py. It stands before the function of MKL, inside libtorch, that
// finds out the processor's type for vector math, and which every thread calls that comes before the
// answer is kept. Each of them is held 50 ms, so that threads that come within that time are seen,
// though they would race within a microsecond. At its end a process appends how many there were to
// the file that VECTOR_MATH_CALLS names.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

struct Calls {
  std::atomic<int> number{0};
  ~Calls() {
    const char* path = std::getenv("VECTOR_MATH_CALLS");
    std::FILE* file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    std::fprintf(file, "%d\n", number.load());
    std::fclose(file);
  }
};

Calls calls;

}  // namespace

extern "C" int mkl_serv_vml_cpu_detect() {
  using Detect = int (*)();
  static const Detect next = reinterpret_cast<Detect>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  ++calls.number;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return next();
}
