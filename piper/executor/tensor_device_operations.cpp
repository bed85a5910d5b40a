#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <piper/comm/element.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/nn/host_read.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace piper::executor {
namespace {

using collective::RowPair;
using comm::Element;

at::ScalarType type_of(Element element) {
  switch (element) {
    case Element::kFloat32:
      return at::kFloat;
    case Element::kFloat64:
      return at::kDouble;
    case Element::kInt64:
      return at::kLong;
    case Element::kBFloat16:
      return at::kBFloat16;
  }
  return at::kByte;
}

// The type in which bytes are copied: as wide as they allow.
at::ScalarType widest(int64_t bytes) {
  if (bytes % 8 == 0) return at::kLong;
  return bytes % 4 == 0 ? at::kInt : bytes % 2 == 0 ? at::kShort : at::kByte;
}

// While it lives, libtorch works in the stream.
class InStream {
 public:
  // libtorch knows a stream that is not its own by its address (c10::cuda::getStreamFromExternal),
  // which is said here without its CUDA headers.
  InStream(const at::Device& device, void* stream) {
    if (!device.is_cpu() && stream != comm::kCurrentStream)
      guard_.emplace(c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<int64_t>(stream)));
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

struct EventMark final : comm::DeviceMemory::Mark {
  explicit EventMark(at::DeviceType type) : event(type) {}
  c10::Event event;
};

struct TensorBytes final : comm::DeviceMemory::HostBytes {
  explicit TensorBytes(at::Tensor tensor) : tensor(std::move(tensor)) {}
  std::span<std::byte> bytes() override {
    return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
  }
  at::Tensor tensor;  // bytes, pinned where the device is a GPU
};

// Says when events are reached: one thread, begun with the first of them, asks them in turn.
class EventWatch {
 public:
  explicit EventWatch(const at::Device& device) : device_(device) {}
  ~EventWatch() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  EventWatch(const EventWatch&) = delete;
  EventWatch& operator=(const EventWatch&) = delete;

  void add(std::shared_ptr<const EventMark> mark, comm::DeviceMemory::Reached call) {
    const std::lock_guard lock(mutex_);
    added_.push_back({std::move(mark), std::move(call)});
    if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
    changed_.notify_one();
  }

 private:
  static constexpr std::chrono::microseconds kPause{20};
  struct Watched {
    std::shared_ptr<const EventMark> mark;
    comm::DeviceMemory::Reached call;
  };

  void watch() {
    const c10::DeviceGuard guard(device_);
    std::vector<Watched> watched;
    std::unique_lock lock(mutex_);
    while (true) {
      if (watched.empty()) changed_.wait(lock, [&] { return is_ending_ || !added_.empty(); });
      if (is_ending_) return;
      std::ranges::move(added_, std::back_inserter(watched));
      added_.clear();
      lock.unlock();
      if (std::erase_if(watched, is_over) == 0) std::this_thread::sleep_for(kPause);
      lock.lock();
    }
  }
  // Reached, or broken, and said.
  static bool is_over(const Watched& of) {
    std::string problem;
    try {
      if (!of.mark->event.query()) return false;
    } catch (const std::exception& error) {
      problem = error.what();
    }
    of.call(problem);
    return true;
  }

  at::Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> added_;
  bool is_ending_ = false;
  std::thread thread_;
};

class TensorOperations final : public comm::DeviceMemory {
 public:
  explicit TensorOperations(const at::Device& device) : device_(device), watch_(device) {}

  void add(Element element, std::byte* target, const std::byte* source, int64_t count,
           void* stream) override {
    const InStream in_stream(device_, stream);
    view(target, {count}, type_of(element)).add_(view(source, {count}, type_of(element)));
  }

  std::unique_ptr<Rows> prepare_rows(std::span<const RowPair> pairs, bool adds, Element element,
                                     int64_t row_bytes) override {
    return std::make_unique<TensorRows>(*this, pairs, adds, element, row_bytes);
  }

  std::shared_ptr<const Mark> mark() override {
    if (device_.is_cpu()) return std::make_shared<const Mark>();
    auto mark = std::make_shared<EventMark>(device_.type());
    mark->event.record(current_stream());
    return mark;
  }

  void wait(const Mark& mark) override {
    if (const auto* of = dynamic_cast<const EventMark*>(&mark)) of->event.block(current_stream());
  }

  void copy(std::byte* target, const std::byte* source, size_t bytes) override {
    const auto count = static_cast<int64_t>(bytes);
    view(target, {count}, at::kByte).copy_(view(source, {count}, at::kByte), /*non_blocking=*/true);
  }

  std::shared_ptr<HostBytes> host_bytes(size_t size) override {
    return std::make_shared<TensorBytes>(
        at::empty({static_cast<int64_t>(size)},
                  at::TensorOptions().dtype(at::kByte).pinned_memory(device_.is_cuda())));
  }
  void copy_to_host(HostBytes& target, const std::byte* source) override {
    const at::Tensor& to = static_cast<TensorBytes&>(target).tensor;
    to.copy_(view(source, to.sizes(), at::kByte), /*non_blocking=*/true);
  }
  void copy_from_host(std::byte* target, HostBytes& source) override {
    const at::Tensor& from = static_cast<TensorBytes&>(source).tensor;
    view(target, from.sizes(), at::kByte).copy_(from, /*non_blocking=*/true);
  }
  void when_reached(std::shared_ptr<const Mark> mark, Reached call) override {
    if (auto of = std::dynamic_pointer_cast<const EventMark>(mark))
      watch_.add(std::move(of), std::move(call));
    else
      call("");  // on the CPU all is done
  }

 private:
  c10::Stream current_stream() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  at::Tensor view(const std::byte* bytes, at::IntArrayRef shape, at::ScalarType type) const {
    return at::for_blob(const_cast<std::byte*>(bytes), shape)
        .options(at::TensorOptions(device_).dtype(type))
        .target_device(device_)  // without asking the driver whose memory it is
        .make_tensor();
  }

  class TensorRows final : public Rows {
   public:
    TensorRows(TensorOperations& operations, std::span<const RowPair> pairs, bool adds,
               Element element, int64_t row_bytes)
        : operations_(operations),
          adds_(adds),
          type_(adds ? type_of(element) : widest(row_bytes)),
          columns_(row_bytes / static_cast<int64_t>(c10::elementSize(type_))) {
      std::vector<int64_t> from, to;
      for (const RowPair& pair : pairs) {
        from.push_back(pair.from);
        to.push_back(pair.to);
        rows_from_ = std::max<int64_t>(rows_from_, pair.from + 1);
        rows_to_ = std::max<int64_t>(rows_to_, pair.to + 1);
        follow_ = follow_ && pair.to - pairs.front().to == &pair - pairs.data();
      }
      if (!to.empty()) first_to_ = to.front();
      from_ = nn::put_on_device(at::tensor(from, at::kLong), operations.device_);
      to_ = nn::put_on_device(at::tensor(to, at::kLong), operations.device_);
      numbers_are_there_ = operations_.mark();
    }

    void move(std::byte* target, const std::byte* source, void* stream) override {
      const InStream in_stream(operations_.device_, stream);
      take_numbers(stream);
      at::Tensor into = operations_.view(target, {rows_to_, columns_}, type_);
      const at::Tensor out = operations_.view(source, {rows_from_, columns_}, type_);
      if (adds_) {
        into.index_add_(0, to_, out.index_select(0, from_));
      } else if (follow_) {  // no memory between
        at::Tensor rows = into.narrow(0, first_to_, from_.size(0));
        at::index_select_out(rows, out, 0, from_);
      } else {
        into.index_copy_(0, to_, out.index_select(0, from_));
      }
    }

   private:
    // Another stream than that of the constructor's thread comes after it and keeps the memory.
    void take_numbers(void* stream) {
      if (operations_.device_.is_cpu() || stream == comm::kCurrentStream) return;
      operations_.wait(*numbers_are_there_);
      for (const at::Tensor* numbers : {&from_, &to_})
        numbers->record_stream(operations_.current_stream());
    }

    TensorOperations& operations_;
    bool adds_;
    at::ScalarType type_;
    int64_t columns_;
    int64_t rows_from_ = 0, rows_to_ = 0, first_to_ = 0;
    bool follow_ = true;  // the targets follow each other
    at::Tensor from_, to_;
    std::shared_ptr<const Mark> numbers_are_there_;
  };

  at::Device device_;
  EventWatch watch_;
};

}  // namespace

std::unique_ptr<comm::DeviceMemory> make_tensor_device_operations(const at::Device& device) {
  return std::make_unique<TensorOperations>(device);
}

}  // namespace piper::executor
