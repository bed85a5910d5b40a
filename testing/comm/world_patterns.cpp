#include <fmt/format.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/comm/operations.h>
#include <testing/comm/world_patterns.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>

namespace piper::comm {
namespace {

constexpr double kTimeout = 60;

Group everyone(const Transport& transport) {
  Group group{{}, transport.rank().value};
  for (int64_t r = 0; r < transport.world_size(); ++r) group.members.emplace_back(r);
  return group;
}

// `size` bytes that depend on who sends them to whom.
std::vector<std::byte> numbered(int64_t from, int64_t to, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i + 1) * 0x9E3779B1u * (from * 131 + to + 7) >> 24);
  return bytes;
}

// Uneven, with zeros, from a few bytes to more than a note holds.
size_t exchanged(int64_t from, int64_t to) {
  const size_t size = (from * 7 + to * 13 + 3) % 11;
  return size < 3 ? 0 : size * size * size * 57;
}

std::string wrong_exchange(Transport& transport) {
  const Group group = everyone(transport);
  const int64_t me = group.index;
  std::vector<std::byte> send, expected;
  std::vector<int64_t> send_bytes, receive_bytes;
  for (int64_t r = 0; r < transport.world_size(); ++r) {
    const auto to = numbered(me, r, exchanged(me, r)), from = numbered(r, me, exchanged(r, me));
    send.insert(send.end(), to.begin(), to.end());
    expected.insert(expected.end(), from.begin(), from.end());
    send_bytes.push_back(static_cast<int64_t>(to.size()));
    receive_bytes.push_back(static_cast<int64_t>(from.size()));
  }
  std::vector<std::byte> received(expected.size());
  wait(transport,
       *start_all_to_all(transport, group, {1, "exchange"}, send, send_bytes, received,
                         receive_bytes),
       kTimeout);
  return received == expected ? "" : "the exchange";
}

// By rank, numbers of 30 magnitudes, whose sums round. Cheap to make: sanitizers slow it down most.
std::vector<std::vector<float>> addends(int64_t num_ranks, size_t count) {
  std::array<float, 30> magnitudes{};
  for (int i = 0; i < 30; ++i) magnitudes[i] = std::ldexp(1.0f, i - 15);
  std::vector<std::vector<float>> values(num_ranks, std::vector<float>(count));
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    std::minstd_rand random(static_cast<uint32_t>(rank * 7919 + 5));
    for (float& value : values[rank]) {
      const auto drawn = static_cast<uint32_t>(random());
      value = (static_cast<float>(drawn % 2000001) - 1e6f) * magnitudes[drawn / 2000001 % 30];
    }
  }
  return values;
}

// Additions in ascending rank order, as everywhere.
std::string wrong_sum(Transport& transport, uint64_t key, size_t count) {
  const auto all = addends(transport.world_size(), count);
  std::vector<float> values = all[transport.rank().index()], expected = all[0];
  for (size_t r = 1; r < all.size(); ++r)
    for (size_t i = 0; i < count; ++i) expected[i] += all[r][i];
  wait(transport,
       *start_all_reduce(transport, everyone(transport), {key, "sum"}, Element::kFloat32,
                         std::as_writable_bytes(std::span(values))),
       kTimeout);
  return std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0
             ? ""
             : fmt::format("a sum of {}", count);
}

// A reduce-scatter and an all-gather: the sum in ascending order on every rank (with one rank a
// node, the hierarchical sum is the same).
std::string wrong_halves(Transport& transport, uint64_t key, size_t count,
                         collective::ReductionAlgorithm algorithm) {
  const Group group = everyone(transport);
  const int64_t n = transport.world_size();
  const collective::Topology topology = collective::apart(n);
  const auto all = addends(n, count);
  std::vector<float> values = all[transport.rank().index()], expected(count);
  for (int64_t i = 0; i < n; ++i)
    for (size_t k = 0; k < count; ++k) expected[k] = i == 0 ? all[i][k] : expected[k] + all[i][k];
  const auto bytes = std::as_writable_bytes(std::span(values));
  wait(transport,
       *start_reduce_scatter(transport, group, {key, "scatter"}, Element::kFloat32, bytes,
                             algorithm, topology),
       kTimeout);
  wait(transport,
       *start_all_gather(transport, group, {key + 1, "gather"}, Element::kFloat32, bytes, algorithm,
                         topology),
       kTimeout);
  return values == expected
             ? ""
             : fmt::format("the {} halves of a sum of {}", collective::name(algorithm), count);
}

// To the next rank, and back to itself.
std::string wrong_ring(Transport& transport, uint64_t key, size_t size) {
  const int64_t n = transport.world_size(), me = transport.rank().value;
  const int64_t next = (me + 1) % n, previous = (me + n - 1) % n;
  const auto sent = numbered(me, next, size), expected = numbered(previous, me, size);
  std::vector<std::byte> received(size, std::byte{0xAA});
  const auto receive = start_receive(transport, Rank(previous), {key, "ring"}, received);
  const auto send = start_send(transport, Rank(next), {key, "ring"}, sent);
  wait(transport, *send, kTimeout);
  wait(transport, *receive, kTimeout);
  return received == expected ? "" : fmt::format("a ring of {} bytes", size);
}

// More early messages than their receiver is willing to hold.
std::string wrong_flood(Transport& transport) {
  constexpr size_t kCount = 1500, kSize = 1024;
  const int64_t n = transport.world_size(), me = transport.rank().value;
  const int64_t next = (me + 1) % n, previous = (me + n - 1) % n;
  const auto sent = numbered(me, next, kSize), expected = numbered(previous, me, kSize);
  std::vector<std::unique_ptr<Operation>> operations;
  for (size_t i = 0; i < kCount; ++i)
    operations.push_back(start_send(transport, Rank(next), {1000 + i, "flood"}, sent));
  std::vector<std::vector<std::byte>> received(kCount, std::vector<std::byte>(kSize));
  for (size_t i = 0; i < kCount; ++i)
    operations.push_back(
        start_receive(transport, Rank(previous), {1000 + kCount - 1 - i, "flood"}, received[i]));
  for (const auto& operation : operations) wait(transport, *operation, kTimeout);
  for (const auto& one : received)
    if (one != expected) return "the flood";
  return "";
}

}  // namespace

std::string wrong_patterns(World& world) {
  std::mutex mutex;
  std::string wrong;
  run_ranks(world, [&](Transport& transport) {
    for (const std::string& one :
         {wrong_exchange(transport), wrong_sum(transport, 2, 1), wrong_sum(transport, 3, 5003),
          wrong_sum(transport, 4, 300001), wrong_ring(transport, 5, 0), wrong_ring(transport, 6, 1),
          wrong_ring(transport, 7, (size_t{9} << 20) + 5), wrong_flood(transport),
          wrong_halves(transport, 10, 5003, collective::ReductionAlgorithm::kDirect),
          wrong_halves(transport, 12, 300001, collective::ReductionAlgorithm::kDirect),
          wrong_halves(transport, 16, 5003, collective::ReductionAlgorithm::kHierarchical)}) {
      const std::lock_guard lock(mutex);
      if (!one.empty()) wrong += fmt::format("rank {}: {}; ", transport.rank().value, one);
    }
  });
  return wrong;
}

}  // namespace piper::comm
