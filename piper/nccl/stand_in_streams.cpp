#include <piper/nccl/stand_in_streams.h>

#include <cstdlib>
#include <cstring>

namespace piper::nccl::stand_in {
namespace {

struct Settings {
  std::mutex mutex;
  StandInOptions options{
      .jitter_us = 0, .polls_in_progress = 3, .one_by_one = true, .num_devices = 8};
  int64_t num_faults = 0;
  std::string first_fault;
};
Settings& settings() {
  static Settings* all = new Settings;  // threads of streams may outlive main
  return *all;
}

Queue& default_queue() {
  thread_local Queue queue;  // as with one default stream for each thread
  return queue;
}

}  // namespace

StandInOptions options() {
  const std::lock_guard lock(settings().mutex);
  return settings().options;
}

void fault(const std::string& what) {
  const std::lock_guard lock(settings().mutex);
  if (settings().num_faults++ == 0) settings().first_fault = what;
}

Queue::Queue() : ring_(64), random_(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4)) {
  thread_ = std::thread([this] { run(); });
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Queue::put(Work work) {
  if (work.kind != Work::Kind::kGroup && num_pending > 0)
    fault("work for a stream whose group is not put in yet");
  {
    const std::lock_guard lock(mutex_);
    if (count_ == ring_.size()) {
      std::vector<Work> larger(2 * ring_.size());
      for (size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
      ring_ = std::move(larger);
      first_ = 0;
    }
    ring_[(first_ + count_++) % ring_.size()] = std::move(work);
  }
  changed_.notify_all();
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return count_ == 0; });
}

std::vector<Message> Queue::spare_list() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return {};
  std::vector<Message> list = std::move(spare_.back());
  spare_.pop_back();
  return list;
}

void Queue::run() {
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return count_ > 0 || ending_; });
      if (count_ == 0) return;
      work = std::move(ring_[first_]);
    }
    execute(work);
    {
      const std::lock_guard lock(mutex_);
      first_ = (first_ + 1) % ring_.size();
      --count_;
      work.messages.clear();
      if (work.messages.capacity() > 0) spare_.push_back(std::move(work.messages));
    }
    changed_.notify_all();
  }
}

void Queue::execute(Work& work) {
  if (const int64_t jitter = options().jitter_us; jitter > 0)
    std::this_thread::sleep_for(
        std::chrono::microseconds(static_cast<int64_t>(random_()) % (jitter + 1)));
  switch (work.kind) {
    case Work::Kind::kRecord: {
      {
        const std::lock_guard lock(work.event->mutex);
        work.event->num_reached = std::max(work.event->num_reached, work.count);
      }
      work.event->changed.notify_all();
      return;
    }
    case Work::Kind::kWait: {
      std::unique_lock lock(work.event->mutex);
      work.event->changed.wait(lock, [&] { return work.event->num_reached >= work.count; });
      return;
    }
    case Work::Kind::kCopy:
      std::memcpy(work.to, work.from, work.size);
      return;
    case Work::Kind::kHost:
      return work.call(work.argument);
    case Work::Kind::kGroup:
      return execute_group(*work.communicator, work.messages);
  }
}

Queue& queue_of(cudaStream_t stream) {
  return stream == nullptr ? default_queue() : *reinterpret_cast<Queue*>(stream);
}

}  // namespace piper::nccl::stand_in

using piper::nccl::stand_in::EventState;
using piper::nccl::stand_in::Queue;
using piper::nccl::stand_in::queue_of;
using piper::nccl::stand_in::Work;
namespace stand_in = piper::nccl::stand_in;

namespace {
std::shared_ptr<EventState>& state_of(cudaEvent_t event) {
  return *reinterpret_cast<std::shared_ptr<EventState>*>(event);
}
}  // namespace

extern "C" {

void piper_stand_in_reset(const StandInOptions* options) {
  auto& settings = stand_in::settings();
  const std::lock_guard lock(settings.mutex);
  settings.options = *options;
  settings.num_faults = 0;
  settings.first_fault.clear();
}
int64_t piper_stand_in_num_faults() {
  const std::lock_guard lock(stand_in::settings().mutex);
  return stand_in::settings().num_faults;
}
const char* piper_stand_in_first_fault() { return stand_in::settings().first_fault.c_str(); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = stand_in::options().num_devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < stand_in::options().num_devices ? cudaSuccess
                                                                 : cudaErrorInvalidDevice;
}
cudaError_t cudaMalloc(void** at, size_t size) {
  *at = std::malloc(size > 0 ? size : 1);
  return *at != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* at) {
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  queue_of(stream).put({.kind = Work::Kind::kCopy, .to = to, .from = from, .size = size});
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new Queue);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<Queue*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  queue_of(stream).drain();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::shared_ptr<EventState>& state = state_of(event);
  uint64_t count = 0;
  {
    const std::lock_guard lock(state->mutex);
    count = state->num_recorded;
  }
  queue_of(stream).put({.kind = Work::Kind::kWait, .event = state, .count = count});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(
      new std::shared_ptr<EventState>(std::make_shared<EventState>()));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &state_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::shared_ptr<EventState>& state = state_of(event);
  uint64_t count = 0;
  {
    const std::lock_guard lock(state->mutex);
    count = ++state->num_recorded;
  }
  queue_of(stream).put({.kind = Work::Kind::kRecord, .event = state, .count = count});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::shared_ptr<EventState>& state = state_of(event);
  const std::lock_guard lock(state->mutex);
  return state->num_reached >= state->num_recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* argument) {
  queue_of(stream).put({.kind = Work::Kind::kHost, .call = call, .argument = argument});
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error of CUDA";
}
}
