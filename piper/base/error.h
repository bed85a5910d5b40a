// The three kinds of failure, by whose fault it is.
//
//   the user's   InvalidInput: names file, key, value and what is allowed; carries all problems of a file at once
//   the world's  IoError (files, disks), CommError (ranks, operations, peers)
//   ours         PIPER_CHECK: always on; prints the condition and aborts the operation with InternalError
//
// An expected "no" (a plan that does not fit) is a value, never an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace piper {

// The user's fault. `problems` holds one line each, 20 at most and then the number of the others;
// what() joins them with newlines. Texts from outside may stand in them as they are: what would
// steer a terminal or begin a line becomes '?' (printable.h).
class InvalidInput : public std::runtime_error {
 public:
  explicit InvalidInput(std::string problem)
      : InvalidInput(std::vector<std::string>{std::move(problem)}) {}
  explicit InvalidInput(std::vector<std::string> problems);

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  struct Shown {
    std::vector<std::string> problems;
  };
  explicit InvalidInput(Shown shown);

  std::vector<std::string> problems_;
};

// The file system's fault. The message names the path and the cause, in one line likewise.
class IoError : public std::runtime_error {
 public:
  // `cause`: errno's value, 0 where there is none.
  explicit IoError(const std::string& what, int cause = 0);
  int cause() const { return cause_; }

 private:
  int cause_;
};

// A peer's or the network's fault. The message names rank, operation and peer.
class CommError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Our fault: a broken invariant.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

namespace internal {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}  // namespace internal

}  // namespace piper

// Always on. PIPER_CHECK(rank < size, "rank " + std::to_string(rank)); the message is optional.
#define PIPER_CHECK(condition, ...)                                                                \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::piper::internal::check_failed(#condition, __FILE__, __LINE__, ::std::string{__VA_ARGS__}); \
  } while (false)

// In hot loops: on in debug builds only.
#ifdef NDEBUG
#define PIPER_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#else
#define PIPER_DCHECK(condition, ...) PIPER_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
