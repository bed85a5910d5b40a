// Payloads over MPI, a part of mpi_wire.cpp: from buffer to buffer with a tag made from the
// sender's id, in pieces of at most 1 GiB, one after another.
//
// All expected receives are posted, so that none of them can hold up another one. Sends are posted
// kMaxPosted to a process at a time, and requests are asked for in windows of kWindow, from where
// something was last found on: with thousands outstanding a look costs no more than with hundreds,
// unless nothing has moved at all. Used by one thread at a time.
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

class MpiPayloads {
 public:
  // `bell` and `result` outlive it.
  MpiPayloads(MPI_Comm comm, int64_t num_processes, Doorbell& bell, MpiResult& result);

  void send(int64_t process, uint64_t id, std::span<const std::byte> bytes);
  void expect(int64_t process, uint64_t id, std::span<std::byte> bytes);
  // An expected one.
  void cancel(int64_t process, uint64_t id);

  struct Done {
    bool sent = false;  // or received
    int64_t process = 0;
    uint64_t id = 0;
  };
  // Calls done() for what has ended; whether anything has moved.
  bool look(const std::function<void(const Done&)>& done);
  bool empty() const { return requests_.empty(); }

  // Gives up everything.
  void cancel_all();

 private:
  struct Transfer {
    Done what;
    const std::byte* from = nullptr;  // of the next piece; sends
    std::byte* to = nullptr;          // the same; receives
    size_t left = 0;                  // bytes not yet posted
  };
  struct Peer {
    size_t num_posted = 0;  // sends
    std::deque<Transfer> waiting;
  };
  int tag_of(uint64_t id) const { return static_cast<int>(1 + id % (tag_limit_ - 1)); }
  void start_send(const Transfer& transfer);
  bool post(Transfer& transfer, MPI_Request& request);
  void keep(Transfer transfer);
  void drop(size_t index);
  void end(size_t index, const std::function<void(const Done&)>& done);

  MPI_Comm comm_;
  Doorbell& bell_;
  MpiResult& result_;
  uint64_t tag_limit_ = 32767;
  std::vector<Peer> peers_;  // by process
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;  // of requests_
  size_t at_ = 0;                    // of requests_: where the next window begins
  std::vector<int> done_;
};

}  // namespace piper::comm
