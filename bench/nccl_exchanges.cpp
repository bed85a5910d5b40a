#include <bench/nccl_exchanges.h>
#include <piper/base/error.h>
#include <piper/nccl/streamed_exchange.h>

#include <vector>

namespace piper::nccl {
namespace {

class DeviceMemory {
 public:
  DeviceMemory(const Library& library, int64_t bytes) : library_(library) {
    void* at = nullptr;
    library.check(library.cuda.malloc(&at, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
                  "cudaMalloc");
    at_ = static_cast<std::byte*>(at);
  }
  ~DeviceMemory() { library_.cuda.free(at_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* get() const { return at_; }

 private:
  const Library& library_;
  std::byte* at_ = nullptr;
};

class BenchExchanges final : public comm::DeviceExchanges {
 public:
  BenchExchanges(std::shared_ptr<const Library> library, const comm::World& world,
                 std::shared_ptr<Meeting> meeting, int64_t member, int device)
      : library_(std::move(library)),
        communicator_(*library_, world, std::move(meeting), member, {.device = device}) {}

  void add(const std::string& name, collective::MemberSteps steps, comm::Unit unit) override {
    exchanges_.push_back(std::make_unique<OnDevice>(communicator_, name, std::move(steps), unit));
  }

  void put(size_t exchange, std::span<const std::byte> input,
           std::span<const std::byte> output) override {
    copy(exchanges_[exchange]->input.get(), input.data(), input.size(), cudaMemcpyHostToDevice);
    copy(exchanges_[exchange]->output.get(), output.data(), output.size(), cudaMemcpyHostToDevice);
  }

  void execute(size_t exchange, uint64_t key, double timeout_seconds) override {
    exchanges_[exchange]->exchange.start(key);
    wait(exchanges_[exchange]->exchange, timeout_seconds);
  }

  void fetch(size_t exchange, std::span<std::byte> output) override {
    copy(output.data(), exchanges_[exchange]->output.get(), output.size(), cudaMemcpyDeviceToHost);
  }

 private:
  struct OnDevice {
    OnDevice(Communicator& communicator, const std::string& name, collective::MemberSteps steps,
             comm::Unit unit)
        : input(communicator.library(), steps.input_count * unit.bytes),
          output(communicator.library(), steps.output_count * unit.bytes),
          scratch(communicator.library(), steps.scratch_count * unit.bytes),
          exchange(communicator, name, std::move(steps), {input.get(), output.get(), scratch.get()},
                   unit, nullptr) {}
    DeviceMemory input, output, scratch;
    StreamedExchange exchange;
  };

  void copy(std::byte* to, const std::byte* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0) library_->check(library_->cuda.memcpy(to, from, bytes, kind), "cudaMemcpy");
  }

  std::shared_ptr<const Library> library_;
  Communicator communicator_;
  std::vector<std::unique_ptr<OnDevice>> exchanges_;
};

}  // namespace

std::unique_ptr<comm::DeviceExchanges> make_bench_exchanges(std::shared_ptr<const Library> library,
                                                            const comm::World& world,
                                                            std::shared_ptr<Meeting> meeting,
                                                            int64_t member, int device) {
  return std::make_unique<BenchExchanges>(std::move(library), world, std::move(meeting), member,
                                          device);
}

}  // namespace piper::nccl
