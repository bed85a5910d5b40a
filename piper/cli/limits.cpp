#include <piper/base/cause.h>
#include <piper/base/printable.h>
#include <piper/cli/limits.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <thread>

namespace piper::cli {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;  // what Linux gives where nobody asks for less

void give_threads_a_stack() {
  pthread_attr_t wanted;
  if (pthread_getattr_default_np(&wanted) != 0) return;
  size_t bytes = 0;
  if (pthread_attr_getstacksize(&wanted, &bytes) == 0 && bytes < kStackBytes &&
      pthread_attr_setstacksize(&wanted, kStackBytes) == 0)
    pthread_setattr_default_np(&wanted);
  pthread_attr_destroy(&wanted);
}

// The kernel asks for the limit each time that the main stack grows, so raising it helps at once.
bool main_has_a_stack() {
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStackBytes) return true;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kStackBytes);
  setrlimit(RLIMIT_STACK, &limit);
  return limit.rlim_cur >= kStackBytes;
}

std::string words_of_current_exception() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return cause_of(ENOMEM);
  } catch (const std::exception& error) {
    return one_line(error.what());
  } catch (...) {
    return "an exception of no known type";
  }
  return "an internal error";
}

// What no handler caught: in a thread, or before main(), while the libraries set themselves up.
[[noreturn]] void say_and_end() {
  const std::string line = "piper: " + words_of_current_exception() + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(1);
}

// Runs before any library does.
void before_libraries(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  std::set_terminate(say_and_end);
}
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = before_libraries;

}  // namespace

int with_enough_stack(const std::function<int()>& work) {
  give_threads_a_stack();
  if (main_has_a_stack()) return work();
  int code = 1;
  try {
    std::thread([&] { code = work(); }).join();
  } catch (const std::system_error&) {  // no thread is to be had
    return work();
  }
  return code;
}

}  // namespace piper::cli
