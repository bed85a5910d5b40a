// Streams and events of the stand-in.
#pragma once

#include <cuda_runtime_api.h>
#include <piper/nccl/stand_in.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace piper::nccl::stand_in {

StandInOptions options();
void fault(const std::string& what);

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t num_recorded = 0, num_reached = 0;
};

// One send or receive of a group.
struct Message {
  bool sends = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  size_t size = 0;
  bool done = false;
  uint64_t group = 0;  // of its communicator
};

struct Communicator;

struct Work {
  enum class Kind : uint8_t { kRecord, kWait, kCopy, kHost, kGroup } kind = Kind::kRecord;
  std::shared_ptr<EventState> event = nullptr;  // record, wait
  uint64_t count = 0;
  void* to = nullptr;  // copy
  const void* from = nullptr;
  size_t size = 0;
  cudaHostFn_t call = nullptr;  // host
  void* argument = nullptr;
  Communicator* communicator = nullptr;  // group
  std::vector<Message> messages = {};
};

// Executes a group; returns when all of it is done or the communicator was aborted.
void execute_group(Communicator& communicator, std::vector<Message>& messages);

class Queue {
 public:
  Queue();
  ~Queue();  // when all that is in it is done

  void put(Work work);
  void drain();
  // An empty list with memory to fill, if there is one.
  std::vector<Message> spare_list();

  // Groups that were issued and are not yet in the queue.
  std::atomic<int64_t> num_pending{0};

 private:
  void run();
  void execute(Work& work);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Work> ring_;  // grows, never shrinks
  size_t first_ = 0, count_ = 0;
  std::vector<std::vector<Message>> spare_;
  bool ending_ = false;
  std::minstd_rand random_;
  std::thread thread_;  // last
};

Queue& queue_of(cudaStream_t stream);

}  // namespace piper::nccl::stand_in
