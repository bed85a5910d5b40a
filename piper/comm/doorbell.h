// How a thread that can only ask again and again (the MPI wire's) sleeps, and what wakes it: asking
// takes the processor from ranks that compute. Each process has a word of memory; whoever has
// something for it counts the word up and wakes the thread that sleeps on it (futex(2)). Words that
// lie in memory shared by the processes of a host wake across them.
//
// Linux only, needs nothing else: the plug-in that uses it links no Piper.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>
#include <vector>

namespace piper::comm {

// Thread-safe but for share().
class Doorbell {
 public:
  using Word = std::atomic<uint32_t>;
  static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

  // From now on the words are these, by process, and each process can ring every other; or none,
  // and it is alone again. Nobody waits or rings meanwhile. The memory outlives the use of it.
  void share(std::vector<Word*> words, int64_t own) {
    words_ = std::move(words);
    own_ = words_.empty() ? &alone_ : words_.at(static_cast<size_t>(own));
  }
  bool shared() const { return !words_.empty(); }

  uint32_t count() const { return own_->load(std::memory_order_acquire); }
  void ring() { ring(own_); }
  void ring(int64_t process) {
    if (shared()) ring(words_.at(static_cast<size_t>(process)));
  }

  // Sleeps until the count differs from `seen`, for that long at most.
  void wait(uint32_t seen, std::chrono::microseconds longest) const {
    const timespec timeout{.tv_sec = 0, .tv_nsec = longest.count() * 1000};  // below a second
    syscall(SYS_futex, own_, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }

 private:
  static void ring(Word* word) {
    word->fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  Word alone_{0};
  Word* own_ = &alone_;
  std::vector<Word*> words_;  // by process
};

}  // namespace piper::comm
