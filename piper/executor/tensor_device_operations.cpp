#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <piper/comm/element.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/nn/host_read.h>

#include <optional>
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

class TensorOperations final : public comm::DeviceMemory {
 public:
  explicit TensorOperations(const at::Device& device) : device_(device) {}

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
};

}  // namespace

std::unique_ptr<comm::DeviceMemory> make_tensor_device_operations(const at::Device& device) {
  return std::make_unique<TensorOperations>(device);
}

}  // namespace piper::executor
