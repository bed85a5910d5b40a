#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <tests/stand_in/device.h>
#include <torch/library.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>

namespace piper::testing::stand_in {
namespace {

constexpr at::DeviceType kType = at::kPrivateUse1;
constexpr size_t kArenaBytes = size_t{4} << 30;  // of addresses; pages come when they are touched
constexpr size_t kGrain = 256;
constexpr size_t kShownRaces = 32;

at::Device the_device() { return {kType, 0}; }

// How much of each stream's work comes before something: by stream, the number of its last
// operation.
using Clock = std::vector<uint64_t>;

void merge(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t s = 0; s < other.size(); ++s) into[s] = std::max(into[s], other[s]);
}

uint64_t at_of(const Clock& clock, size_t stream) {
  return stream < clock.size() ? clock[stream] : 0;
}

bool is_behind(const Clock& clock, const Clock& other) {  // clock has all that other has
  for (size_t s = 0; s < other.size(); ++s)
    if (at_of(clock, s) < other[s]) return false;
  return true;
}

struct Range {
  size_t begin = 0, end = 0;  // bytes of the arena
  bool writes = false;
};

struct Access {
  Range range;
  size_t stream = 0;
  uint64_t number = 0;  // of the operation in its stream
  std::string what;
};

struct Block {
  size_t begin = 0, size = 0, stream = 0;
  std::set<size_t> users;  // other streams that the allocator was told of
};

struct Event {
  int64_t thread = -1;       // that recorded it
  bool is_recorded = false;  // by the host
  bool is_reached = false;   // by its stream
  Clock clock;
  std::string behind;  // the operation before it
};

struct Item {
  std::function<void()> run;              // an operation
  std::shared_ptr<Event> records, waits;  // or one of these
};

struct Queue {
  std::deque<Item> items;
  uint64_t num_operations = 0;
  uint64_t num_put = 0, num_done = 0;  // items
  Clock clock;                         // of what comes next

  void put(Item item) {
    items.push_back(std::move(item));
    ++num_put;
  }
  std::string last;  // operation
};

thread_local Clock known;  // what the host's thread has waited for
thread_local int64_t thread_number = kNamelessThreads;
thread_local size_t current_stream = 0;

class Machine {
 public:
  Machine() : random_(1) {
    const int file = ::memfd_create("stand-in", 0);
    if (file < 0 || ::ftruncate(file, kArenaBytes) != 0) std::abort();
    const auto map = [&](int protection) {
      void* at = ::mmap(nullptr, kArenaBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      if (at == MAP_FAILED) std::abort();
      return static_cast<char*>(at);
    };
    outside_ = map(PROT_NONE);
    inside_ = map(PROT_READ | PROT_WRITE);
    ::close(file);
    queues_.resize(1);  // the default stream
  }

  // --- memory ---
  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
    release_idle();
    std::vector<size_t>* free = &free_[{current_stream, size}];
    if (free->empty()) free = &free_for_all_[size];
    Block block{.size = size, .stream = current_stream};
    if (!free->empty()) {
      block.begin = free->back();
      free->pop_back();
    } else {
      block.begin = end_;
      end_ += size;
      TORCH_CHECK(end_ <= kArenaBytes, "the stand-in device has no more memory");
    }
    blocks_[block.begin] = block;
    live_bytes_ += static_cast<int64_t>(size);
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return outside_ + block.begin;
  }

  void free(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<size_t>(static_cast<char*>(address) - outside_));
    Block block = found->second;
    blocks_.erase(found);
    live_bytes_ -= static_cast<int64_t>(block.size);
    block.users.erase(block.stream);
    check_given_back(block);
    if (block.users.empty())
      free_[{block.stream, block.size}].push_back(block.begin);
    else
      used_elsewhere_.push_back({block, marks_of(block)});
  }

  void use(const void* address, size_t stream) {
    const std::lock_guard lock(mutex_);
    const size_t at = static_cast<size_t>(static_cast<const char*>(address) - outside_);
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin()) return;
    --found;
    if (at < found->second.begin + found->second.size) found->second.users.insert(stream);
  }

  char* inside(const void* outside) const {
    const auto* at = static_cast<const char*>(outside);
    TORCH_CHECK(at >= outside_ && at < outside_ + kArenaBytes, "memory of another device");
    return inside_ + (at - outside_);
  }
  size_t offset(const void* outside) const {
    return static_cast<size_t>(static_cast<const char*>(outside) - outside_);
  }

  // --- streams ---
  size_t new_stream() {
    const std::lock_guard lock(mutex_);
    queues_.emplace_back();
    return queues_.size() - 1;
  }

  void put(const std::string& what, const std::vector<Range>& ranges, std::function<void()> run) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[current_stream];
    merge(queue.clock, known);
    queue.clock.resize(queues_.size());
    queue.clock[current_stream] = ++queue.num_operations;
    if (left_out_event_ && left_out_stream_ == current_stream && !implied_) {
      implied_ = is_behind(queue.clock, left_out_event_->clock);  // what was waited for besides
      behind_left_out_ = what + " in stream " + std::to_string(current_stream) +
                         ", which waits for " + left_out_event_->behind;
    }
    for (const Range& range : ranges) check(range, what);
    queue.last = what;
    ++num_operations_;
    queue.put({.run = std::move(run)});
    if (mode_ == Mode::kSynchronous) drain(current_stream);
  }

  std::shared_ptr<Event> record(size_t stream) {
    const std::lock_guard lock(mutex_);
    auto event = std::make_shared<Event>();
    event->is_recorded = true;
    event->thread = thread_number;
    Queue& queue = queues_[stream];
    merge(queue.clock, known);
    event->clock = queue.clock;
    event->behind = queue.last + " in stream " + std::to_string(stream);
    queue.put({.records = event});
    if (mode_ == Mode::kSynchronous) drain(stream);
    return event;
  }

  void wait(size_t stream, const std::shared_ptr<Event>& event) {
    const std::lock_guard lock(mutex_);
    const bool is_own = event->thread == thread_number;
    if (is_own && leave_out_ == Wait{thread_number, num_waits_[thread_number]++}) {
      left_out_event_ = event;
      left_out_stream_ = stream;
      return;
    }
    merge(queues_[stream].clock, event->clock);
    queues_[stream].put({.waits = event});
    if (mode_ == Mode::kSynchronous) drain(stream);
  }

  // The host waits.
  void synchronize(size_t stream) {
    const std::lock_guard lock(mutex_);
    drain(stream);
    merge(known, queues_[stream].clock);
  }
  void synchronize_all() {
    const std::lock_guard lock(mutex_);
    for (size_t s = 0; s < queues_.size(); ++s) {
      drain(s);
      merge(known, queues_[s].clock);
    }
  }
  void synchronize(const std::shared_ptr<Event>& event) {
    const std::lock_guard lock(mutex_);
    while (!event->is_reached) step();
    merge(known, event->clock);
  }
  // Who asks gives the streams time to go on.
  bool is_reached(const std::shared_ptr<Event>& event) {
    const std::lock_guard lock(mutex_);
    if (!event->is_reached) {
      at::set_num_threads(1);  // whoever asks, as ranks do: sums have the same order then
      step();
    }
    if (event->is_reached) merge(known, event->clock);
    return event->is_reached;
  }
  void count_read() {
    const std::lock_guard lock(mutex_);
    ++num_reads_[thread_number];
  }

  // --- tests ---
  void begin(Mode mode, uint64_t seed) {
    synchronize_all();
    const std::lock_guard lock(mutex_);
    forget_streams();
    mode_ = mode;
    random_.seed(seed);
    history_.clear();
    races_.clear();
    num_waits_.clear();
    leave_out_.reset();
    left_out_event_.reset();
    implied_.reset();
    behind_left_out_.clear();
    num_reads_.clear();
    num_operations_ = 0;
  }
  std::vector<std::string> races() {
    const std::lock_guard lock(mutex_);
    return races_;
  }
  int64_t num_reads() {
    const std::lock_guard lock(mutex_);
    int64_t all = 0;
    for (const auto& [thread, count] : num_reads_) all += count;
    return all;
  }
  int64_t num_reads(int64_t thread) {
    const std::lock_guard lock(mutex_);
    return num_reads_[thread];
  }
  int64_t num_operations() {
    const std::lock_guard lock(mutex_);
    return num_operations_;
  }
  int64_t num_waits(int64_t thread) {
    const std::lock_guard lock(mutex_);
    return num_waits_[thread];
  }
  void leave_out(const Wait& wait) {
    const std::lock_guard lock(mutex_);
    leave_out_ = wait;
  }
  bool was_implied() {
    const std::lock_guard lock(mutex_);
    return implied_.value_or(true);
  }
  std::string behind_left_out() {
    const std::lock_guard lock(mutex_);
    return behind_left_out_;
  }
  int64_t live_bytes() {
    const std::lock_guard lock(mutex_);
    return live_bytes_;
  }
  int64_t peak_bytes() {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
  }

 private:
  // How far streams have to come, and what they then have behind them.
  struct Marks {
    std::vector<std::pair<size_t, uint64_t>> items;  // of a stream
    Clock clock;
  };

  // Whoever has it next comes after what its stream and its users do until now, and after nothing
  // else.
  void check_given_back(const Block& block) {
    Clock done = queues_[block.stream].clock;
    merge(done, known);
    for (const size_t user : block.users) merge(done, queues_[user].clock);
    const auto found = history_.find(block.begin);
    if (found == history_.end()) return;
    for (const Access& access : found->second)
      if (access.range.begin >= block.begin && access.range.end <= block.begin + block.size &&
          at_of(done, access.stream) < access.number && races_.size() < kShownRaces)
        races_.push_back(fmt::format("memory is given back while {} in stream {} may use it",
                                     access.what, access.stream));
  }

  Marks marks_of(const Block& block) const {
    Marks marks;
    for (const size_t user : block.users) {
      marks.items.emplace_back(user, queues_[user].num_put);
      merge(marks.clock, queues_[user].clock);
    }
    return marks;
  }

  // What other streams used is free once they have done what they had to do then: the host has seen
  // that, so what comes next comes after it.
  void release_idle() {
    std::erase_if(used_elsewhere_, [&](const std::pair<Block, Marks>& used) {
      for (const auto& [stream, number] : used.second.items)
        if (queues_[stream].num_done < number) return false;
      const Block& block = used.first;
      forget(block, used.second.clock);
      free_[{block.stream, block.size}].push_back(block.begin);
      return true;
    });
  }

  // All is done, and the threads that worked in the streams have ended: the next case has streams
  // of its own, and what was in use anywhere is anyone's. (Else every case would look through the
  // streams of all before it.)
  void forget_streams() {
    release_idle();
    for (const auto& [of, blocks] : free_)
      free_for_all_[of.second].insert(free_for_all_[of.second].end(), blocks.begin(), blocks.end());
    free_.clear();
    for (auto& [begin, block] : blocks_) block.stream = 0, block.users.clear();
    queues_.clear();
    queues_.resize(1);
    known.clear();
  }

  void forget(const Block& block, const Clock& done) {
    for (auto& [page, accesses] : history_)
      std::erase_if(accesses, [&](const Access& access) {
        return access.range.begin < block.begin + block.size && access.range.end > block.begin &&
               at_of(done, access.stream) >= access.number;
      });
  }

  // Accesses are kept by the block that they lie in.
  std::vector<Access>& history_of(const Range& range) {
    auto found = blocks_.upper_bound(range.begin);
    return history_[found == blocks_.begin() ? 0 : std::prev(found)->second.begin];
  }

  void check(const Range& range, const std::string& what) {
    if (range.begin == range.end) return;
    const Clock& now = queues_[current_stream].clock;
    std::vector<Access>& accesses = history_of(range);
    for (const Access& earlier : accesses) {
      if (earlier.range.end <= range.begin || earlier.range.begin >= range.end) continue;
      if (!earlier.range.writes && !range.writes) continue;
      if (at_of(now, earlier.stream) >= earlier.number) continue;
      if (races_.size() < kShownRaces)
        races_.push_back(fmt::format("{} in stream {} and {} in stream {}: no event orders them",
                                     what, current_stream, earlier.what, earlier.stream));
    }
    // What this one covers and comes after need not be kept.
    std::erase_if(accesses, [&](const Access& earlier) {
      return earlier.range.begin >= range.begin && earlier.range.end <= range.end &&
             at_of(now, earlier.stream) >= earlier.number &&
             (range.writes || (earlier.stream == current_stream && !earlier.range.writes));
    });
    accesses.push_back({range, current_stream, queues_[current_stream].num_operations, what});
  }

  bool may_go_on(const Queue& queue) const {
    return !queue.items.empty() &&
           (queue.items.front().waits == nullptr || queue.items.front().waits->is_reached);
  }

  // One item of any stream.
  void step() {
    std::vector<size_t> able;
    for (size_t s = 0; s < queues_.size(); ++s)
      if (may_go_on(queues_[s])) able.push_back(s);
    TORCH_CHECK(!able.empty(), "the streams of the stand-in device wait for each other");
    Queue& queue = queues_[able[random_() % able.size()]];
    Item item = std::move(queue.items.front());
    queue.items.pop_front();
    if (item.records) item.records->is_reached = true;
    ++queue.num_done;
    if (item.run) item.run();
  }
  void drain(size_t stream) {
    while (!queues_[stream].items.empty()) step();
  }

  std::recursive_mutex mutex_;
  char *outside_ = nullptr, *inside_ = nullptr;
  size_t end_ = 0;
  std::map<size_t, Block> blocks_;
  std::map<std::pair<size_t, size_t>, std::vector<size_t>> free_;  // stream, size
  std::map<size_t, std::vector<size_t>> free_for_all_;             // size
  std::vector<std::pair<Block, Marks>> used_elsewhere_;
  int64_t live_bytes_ = 0, peak_bytes_ = 0;

  Mode mode_ = Mode::kSynchronous;
  std::mt19937_64 random_;
  std::deque<Queue> queues_;
  std::map<size_t, std::vector<Access>> history_;
  std::vector<std::string> races_;
  std::map<int64_t, int64_t> num_waits_;
  std::optional<Wait> leave_out_;
  std::shared_ptr<Event> left_out_event_;
  size_t left_out_stream_ = 0;
  std::string behind_left_out_;
  std::optional<bool> implied_;           // from the stream's next operation on
  std::map<int64_t, int64_t> num_reads_;  // by thread
  int64_t num_operations_ = 0;
};

Machine& machine() {
  static auto* const machine = new Machine;  // outlives every tensor
  return *machine;
}

// --- the allocator that libtorch asks ---

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, the_device()};
    void* const at = machine().allocate(bytes);
    return {at, at, &give_back, the_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void*, const void*, size_t) const override { std::abort(); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) machine().use(data.get(), static_cast<size_t>(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.requested_bytes[0].current = machine().live_bytes();
    stats.requested_bytes[0].peak = machine().peak_bytes();
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {kArenaBytes - static_cast<size_t>(machine().live_bytes()), kArenaBytes};
  }

 private:
  static void give_back(void* at) {
    if (at != nullptr) machine().free(at);
  }
};

// --- the guard: current stream, events ---

using EventHandle = std::shared_ptr<Event>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return kType; }
  at::Device exchangeDevice(at::Device) const override { return the_device(); }
  at::Device getDevice() const override { return the_device(); }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream stream_of(size_t id) {
    return c10::Stream(c10::Stream::UNSAFE, the_device(), static_cast<c10::StreamId>(id));
  }
  c10::Stream getStream(at::Device) const override { return stream_of(current_stream); }
  c10::Stream getDefaultStream(at::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override {
    return stream_of(machine().new_stream());
  }
  c10::Stream getNewStream(at::Device, int) const override {
    return stream_of(machine().new_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current_stream, static_cast<size_t>(stream.id())));
  }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().synchronize(static_cast<size_t>(stream.id()));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { machine().synchronize_all(); }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    delete static_cast<EventHandle*>(*event);
    *event = new EventHandle(machine().record(static_cast<size_t>(stream.id())));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr)
      machine().wait(static_cast<size_t>(stream.id()), *static_cast<EventHandle*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || machine().is_reached(*static_cast<EventHandle*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) machine().synchronize(*static_cast<EventHandle*>(event));
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0.001; }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) machine().use(data.get(), static_cast<size_t>(stream.id()));
  }
};

// --- operations ---

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

Range range_of(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {};
  const size_t begin = machine().offset(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + static_cast<size_t>(last + 1) * tensor.element_size(), writes};
}

// The same elements as the device's kernels see them.
at::Tensor inside(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(machine().inside(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       options);
}

// Zeros of the same shape on the CPU.
at::Tensor zeros_like_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions().dtype(tensor.scalar_type()))
      .zero_();
}

// Every tensor of the arguments through `change`.
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (is_here(value.toTensor())) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& tensor : list)
      if (is_here(tensor)) tensor = change(tensor);
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && is_here(*tensor) ? std::optional(change(*tensor)) : tensor);
    value = std::move(list);
  } else if (value.isDevice() && value.toDevice().type() == kType) {
    value = change(at::Tensor()).device();
  }
}

bool is_written(const c10::AliasInfo* alias) { return alias != nullptr && alias->isWrite(); }

// The same call on zeros, which says what it returns and how large results become (libtorch's
// shapes without elements do not know every operator).
torch::jit::Stack rehearse(const c10::OperatorHandle& op, std::vector<c10::IValue>& arguments) {
  torch::jit::Stack given_zeros;
  for (c10::IValue value : arguments) {
    change_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? zeros_like_of(tensor) : at::empty({0});
    });
    given_zeros.push_back(std::move(value));
  }
  torch::jit::Stack stack = given_zeros;
  op.callBoxed(&stack);
  // A result that was given empty, to be made as large as it has to be.
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_written(op.schema().arguments()[i].alias_info()) || !arguments[i].isTensor()) continue;
    const at::Tensor given = arguments[i].toTensor();
    if (!is_here(given) || given.numel() > 0) continue;
    const at::Tensor grown = given_zeros[i].toTensor();
    const at::Tensor made = at::empty_strided(grown.sizes(), grown.strides(), given.options());
    given.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
    given.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
  }
  return stack;
}

bool needs_shapes(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const auto& schema = op.schema();
  for (const auto& returned : schema.returns())
    if (!is_written(returned.alias_info())) return true;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (is_written(schema.arguments()[i].alias_info()) && arguments[i].isTensor() &&
        is_here(arguments[i].toTensor()) && arguments[i].toTensor().numel() == 0)
      return true;
  return false;
}

void run_operation(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t num_arguments = schema.arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(num_arguments),
                                     stack->end());
  stack->resize(stack->size() - num_arguments);

  std::vector<Range> ranges;
  torch::jit::Stack rehearsed;
  if (needs_shapes(op, arguments)) rehearsed = rehearse(op, arguments);
  for (size_t i = 0; i < num_arguments; ++i) {
    const bool writes = is_written(schema.arguments()[i].alias_info());
    c10::IValue copy = arguments[i];
    change_tensors(copy, [&](const at::Tensor& tensor) {
      if (tensor.defined()) ranges.push_back(range_of(tensor, writes));
      return tensor.defined() ? tensor : at::empty({0});
    });
  }
  std::vector<c10::IValue> inner = arguments;
  for (c10::IValue& value : inner)
    change_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined() ? inside(tensor) : at::empty({0});
    });

  // What it returns: an argument that it wrote, or new tensors, whose shapes are those of the same
  // operation without elements.
  std::vector<c10::IValue> results;
  std::vector<std::pair<size_t, at::Tensor>> made;  // inside, by return
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::AliasInfo* alias = schema.returns()[r].alias_info();
    if (is_written(alias)) {
      for (size_t i = 0; i < num_arguments; ++i)
        if (const auto* of = schema.arguments()[i].alias_info();
            is_written(of) && of->beforeSets() == alias->beforeSets())
          results.push_back(arguments[i]);
      continue;
    }
    TORCH_CHECK(rehearsed.at(r).isTensor(), "the stand-in device cannot return what ",
                schema.name(), " does");
    const at::Tensor shape = rehearsed[r].toTensor();
    const at::Tensor result =
        at::empty_strided(shape.sizes(), shape.strides(),
                          at::TensorOptions().dtype(shape.scalar_type()).device(the_device()));
    ranges.push_back(range_of(result, true));
    made.emplace_back(r, inside(result));
    results.emplace_back(result);
  }
  TORCH_CHECK(results.size() == schema.returns().size(), schema.name());
  machine().put(schema.name(), ranges, [op, inner = std::move(inner), made] {
    const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    torch::jit::Stack work(inner.begin(), inner.end());
    op.callBoxed(&work);
    for (const auto& [r, to] : made) at::Tensor(to).copy_(work[r].toTensor());
  });
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kType),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(kType),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

// To and from the host, and on the device.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (is_here(from) && !is_here(to)) {
    const at::Tensor source = inside(from);
    if (non_blocking) {  // who reads before the stream is there finds what was there before
      machine().put("copy to the host", {range_of(from, false)},
                    [source, to] { at::Tensor(to).copy_(source); });
      return to;
    }
    machine().put("copy to the host", {range_of(from, false)}, [] {});
    machine().count_read();
    machine().synchronize(current_stream);
    at::Tensor(to).copy_(source);
    return to;
  }
  const at::Tensor target = inside(to);
  if (is_here(from)) {
    machine().put("copy", {range_of(from, false), range_of(to, true)},
                  [source = inside(from), target] { at::Tensor(target).copy_(source); });
  } else {  // what the host has when the stream is there
    machine().put("copy from the host", {range_of(to, true)},
                  [from, target] { at::Tensor(target).copy_(from); });
  }
  if (!is_here(from) && !non_blocking) {  // as CUDA's of memory that is not pinned
    machine().count_read();
    machine().synchronize(current_stream);
  }
  return to;
}

at::Scalar read_number(const at::Tensor& tensor) {
  machine().put("read of a number", {range_of(tensor, false)}, [] {});
  machine().count_read();
  machine().synchronize(current_stream);
  return inside(tensor).item();
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (tensor.numel() > 0) machine().use(tensor.storage().data(), static_cast<size_t>(stream.id()));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::cpu::view_symint(self, size);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operation>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &read_number);
  library.impl("record_stream", &record_stream);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  // Without a kernel of the device's own, libtorch would read the groups' ends on the host.
  library.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&run_operation>());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

at::Device device() {
  static const bool is_registered = [] {
    c10::SetAllocator(kType, new Allocator, 100);
    return true;
  }();
  (void)is_registered;
  return the_device();
}

void begin(Mode mode, uint64_t seed) {
  device();
  machine().begin(mode, seed);
}
void finish() { machine().synchronize_all(); }
int64_t num_host_reads() { return machine().num_reads(); }
int64_t num_host_reads(int64_t thread) { return machine().num_reads(thread); }
int64_t num_operations() { return machine().num_operations(); }
std::vector<std::string> races() { return machine().races(); }
void name_thread(int64_t thread) { thread_number = thread; }
int64_t num_waits(int64_t thread) { return machine().num_waits(thread); }
void leave_out(const Wait& wait) { machine().leave_out(wait); }
bool was_implied() { return machine().was_implied(); }
std::string behind_left_out() { return machine().behind_left_out(); }

}  // namespace piper::testing::stand_in
