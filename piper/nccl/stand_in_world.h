// What the tests share: a world of threads, each rank with a communicator over the stand-in.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <piper/comm/element.h>
#include <piper/comm/local.h>
#include <piper/nccl/stand_in.h>
#include <piper/nccl/streamed_exchange.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace piper::nccl {

// Beside the test program.
inline std::string stand_in_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "piper_nccl_stand_in.so";
}

// The library, and what tests set in it.
class StandIn {
 public:
  explicit StandIn(const StandInOptions& options)
      : library_(LibraryPaths{stand_in_path(), stand_in_path()}) {
    find<void (*)(const StandInOptions*)>("piper_stand_in_reset")(&options);
  }
  const Library& library() const { return library_; }
  int64_t num_faults() const { return find<int64_t (*)()>("piper_stand_in_num_faults")(); }
  std::string first_fault() const {
    return find<const char* (*)()>("piper_stand_in_first_fault")();
  }

 private:
  template <class Function>
  static Function find(const char* name) {
    void* handle = dlopen(stand_in_path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Function>(dlsym(handle, name));
  }
  Library library_;
};

inline constexpr StandInOptions kStrict{
    .jitter_us = 0, .polls_in_progress = 3, .one_by_one = true, .num_devices = 16};

// Runs `body` in a thread for every rank.
inline void run_ranks(const StandIn& stand_in, comm::World& world,
                      const std::function<void(comm::Transport&, Communicator&)>& body,
                      double connect_timeout_seconds = 20) {
  std::vector<Rank> members;
  for (int64_t r = 0; r < world.size(); ++r) members.emplace_back(r);
  const std::shared_ptr<Meeting> meeting = meet(world, stand_in.library(), "tests", members);
  comm::run_ranks(world, [&](comm::Transport& transport) {
    const int64_t rank = transport.rank().value;
    Communicator communicator(
        stand_in.library(), world, meeting, rank,
        {.device = static_cast<int>(rank), .connect_timeout_seconds = connect_timeout_seconds});
    body(transport, communicator);
  });
}

// Additions and rows where the stand-in's memory is: calls in the stream.
class HostOperations final : public comm::DeviceOperations {
 public:
  explicit HostOperations(const Library& library) : library_(library) {}

  void add(comm::Element element, std::byte* target, const std::byte* source, int64_t count,
           void* stream) override {
    const size_t bytes = static_cast<size_t>(count * comm::size_of(element));
    put(stream, [=] { comm::add(element, std::span(target, bytes), std::span(source, bytes)); });
  }

  std::unique_ptr<Rows> prepare_rows(std::span<const collective::RowPair> pairs, bool adds,
                                     comm::Element element, int64_t row_bytes) override {
    return std::make_unique<HostRows>(*this, std::vector(pairs.begin(), pairs.end()), adds, element,
                                      static_cast<size_t>(row_bytes));
  }

 private:
  struct HostRows final : Rows {
    HostRows(HostOperations& operations, std::vector<collective::RowPair> pairs, bool adds,
             comm::Element element, size_t bytes)
        : operations(operations),
          pairs(std::move(pairs)),
          adds(adds),
          element(element),
          bytes(bytes) {}
    void move(std::byte* target, const std::byte* source, void* stream) override {
      operations.put(stream, [=, this] {
        for (const auto& [from, to] : pairs) {
          const std::span<std::byte> into(target + to * bytes, bytes);
          const std::span<const std::byte> out(source + from * bytes, bytes);
          if (adds)
            comm::add(element, into, out);
          else
            std::memcpy(into.data(), out.data(), bytes);
        }
      });
    }
    HostOperations& operations;
    std::vector<collective::RowPair> pairs;
    bool adds;
    comm::Element element;
    size_t bytes;
  };

  void put(void* stream, std::function<void()> call) {
    library_.check(library_.cuda.launch_host_func(
                       static_cast<cudaStream_t>(stream),
                       [](void* argument) {
                         const std::unique_ptr<std::function<void()>> kept(
                             static_cast<std::function<void()>*>(argument));
                         (*kept)();
                       },
                       new std::function<void()>(std::move(call))),
                   "cudaLaunchHostFunc");
  }

  const Library& library_;
};

}  // namespace piper::nccl
