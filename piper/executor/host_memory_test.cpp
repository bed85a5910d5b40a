#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/executor/host_memory.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

using namespace piper;
using namespace piper::executor;

namespace {

void finish(comm::Operation& operation) {
  while (!operation.advance()) std::this_thread::yield();
}

at::Tensor counted_up(int64_t count) { return at::arange(count, at::kFloat).view(at::kByte); }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE(
    "what goes to the host comes back, from memory and from a file, one copy after the other") {
  for (const std::filesystem::path& folder :
       {std::filesystem::path(), std::filesystem::temp_directory_path()}) {
    std::atomic<int> ended = 0;
    HostMemory memory({.folder = folder, .ended = [&] { ++ended; }});
    const at::Tensor here = counted_up(1 << 20), back = at::empty_like(here);
    const at::Tensor there = memory.allocate(here.numel());
    const auto out = memory.start({{there, here}}, "out");
    const auto in = memory.start({{back, there}}, "in");
    finish(*in);
    CHECK(out->advance());
    CHECK(at::equal(here, back));
    CHECK(ended >= 1);
  }
}

TEST_CASE("memory that was given back is given again, and outlives its pool") {
  at::Tensor last;
  {
    HostMemory memory({});
    const void* place = nullptr;
    {
      const at::Tensor first = memory.allocate(10000);
      place = first.data_ptr();
    }
    last = memory.allocate(9000);
    CHECK(last.data_ptr() == place);
    CHECK(memory.allocate(1000).data_ptr() != place);
  }
  last.fill_(7);
  CHECK(last.sum().item<int64_t>() == 7 * 9000);
}

TEST_CASE("beside a GPU the pages that were asked for are locked, once, until they are unmapped") {
  static std::map<void*, size_t> locked;
  static size_t most = 0;
  const PageLock counting = {.lock =
                                 [](void* pages, size_t bytes) {
                                   locked.emplace(pages, bytes);
                                   most = std::max(most, locked.size());
                                   return true;
                                 },
                             .unlock = [](void* pages) { CHECK(locked.erase(pages) == 1); }};
  {
    HostMemory memory({.page_lock = counting});
    const at::Tensor first = memory.allocate(300000), second = memory.allocate(5);
    REQUIRE(locked.contains(first.data_ptr()));
    CHECK(locked[first.data_ptr()] == 74 * 4096);  // not 2^19
    CHECK(locked[second.data_ptr()] == 4096);
    for (int i = 0; i < 3; ++i) memory.allocate(200000);  // one after the other: the same pages
    CHECK(most == 3);
    HostMemory in_file({.folder = std::filesystem::temp_directory_path(), .page_lock = counting});
    in_file.allocate(8192);
    CHECK(most == 3);
  }
  CHECK(locked.empty());
}

TEST_CASE("the runtime locks pages where there is a GPU, and nothing where there is none") {
  alignas(4096) static std::byte page[4096];
  const bool has_gpu = at::globalContext().hasCUDA();
  if (has_gpu) at::globalContext().lazyInitDevice(at::kCUDA);  // or nothing counts as pinned
  REQUIRE(runtime_page_lock().lock(page, sizeof page) == has_gpu);
  if (!has_gpu) return;
  CHECK(at::from_blob(page, {sizeof page}, at::kByte).is_pinned());
  runtime_page_lock().unlock(page);
  CHECK(!at::from_blob(page, {sizeof page}, at::kByte).is_pinned());
}

TEST_CASE("a link keeps to its rate") {
  HostMemory memory({.bytes_per_second = 50e6});
  const at::Tensor here = counted_up(500000);  // 2 MB: 40 ms
  const auto begin = std::chrono::steady_clock::now();
  const auto first = memory.start({{memory.allocate(here.numel()), here}}, "first");
  const auto second = memory.start({{memory.allocate(here.numel()), here}}, "second");
  finish(*first);
  CHECK(seconds_since(begin) >= 0.039);
  finish(*second);
  CHECK(seconds_since(begin) >= 0.079);
}

TEST_CASE("no room is said, and a copy of other bytes is a mistake") {
  HostMemory memory({.folder = "/no/such/folder"});
  CHECK_THROWS_WITH_AS(memory.allocate(100), doctest::Contains("/no/such/folder"), IoError);
  HostMemory own({});
  CHECK_THROWS_AS(own.start({{own.allocate(8), own.allocate(9)}}, "uneven"), InternalError);
}
