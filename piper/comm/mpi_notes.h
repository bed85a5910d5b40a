// Notes over MPI, a part of mpi_wire.cpp: messages with tag 0 into a ring of posted receives.
//
// A message holds one note or several: those that were given since the last message left, and those
// that had to wait because kMaxLeaving messages to the same process were still on their way. So
// thousands of notes at once are few messages, and MPI never has more of them to look after than
// that. Used by one thread at a time.
#pragma once

#include <mpi.h>
#include <piper/comm/doorbell.h>
#include <piper/comm/mpi_result.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace piper::comm {

class MpiNotes {
 public:
  static constexpr int kTag = 0;
  // What is longer goes from buffer to buffer: fewer copies, three wake-ups more, which up to here
  // take longer than the copies.
  static constexpr size_t kMaxNoteBytes = size_t{34} * 1024;

  // `bell` and `result` outlive it.
  MpiNotes(MPI_Comm comm, int64_t num_processes, Doorbell& bell, MpiResult& result);

  // From here on notes can come.
  void start();

  // As it goes into a message. Any thread.
  static std::vector<std::byte> pack(std::span<const std::byte> head,
                                     std::span<const std::byte> body);
  // Takes a packed note; send() hands it to MPI, in order, and says whether anything has moved.
  void give(int64_t process, std::vector<std::byte> packed);
  bool send();
  // Whether some have not left.
  bool sending() const { return !busy_.empty(); }

  // Calls arrived(process, note) for what has come; whether anything has.
  bool take(const std::function<void(int64_t, std::span<const std::byte>)>& arrived);

  // Gives up everything.
  void cancel();

 private:
  struct Leaving {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> message;
  };
  struct Peer {
    std::deque<std::vector<std::byte>> waiting;
    std::deque<Leaving> leaving;
  };
  void post(size_t index);
  bool send_to(int64_t process, Peer& peer);
  static std::vector<std::byte> next_message(std::deque<std::vector<std::byte>>& waiting);

  MPI_Comm comm_;
  Doorbell& bell_;
  MpiResult& result_;
  std::vector<MPI_Request> posted_;  // a ring
  std::vector<std::vector<std::byte>> buffers_;
  size_t next_posted_ = 0;
  std::vector<Peer> peers_;    // by process
  std::vector<int64_t> busy_;  // processes for which something waits or is on its way
};

}  // namespace piper::comm
