#include <doctest/doctest.h>
#include <piper/comm/counted_transport.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>

#include <numeric>

namespace piper::comm {
namespace {

TEST_CASE("a counted transport knows by operation, peer and direction what an exchange moved") {
  LocalWorld world(3);
  run_ranks(world, [](Transport& inner) {
    CountedTransport transport(inner);
    const auto me = inner.rank().value;
    // Rank i sends (i + 1) * (j + 1) bytes to rank j.
    std::vector<int64_t> to, from;
    for (int64_t peer = 0; peer < 3; ++peer) {
      to.push_back((me + 1) * (peer + 1));
      from.push_back((peer + 1) * (me + 1));
    }
    std::vector<std::byte> send(static_cast<size_t>(std::accumulate(to.begin(), to.end(), 0L))),
        receive(static_cast<size_t>(std::accumulate(from.begin(), from.end(), 0L)));
    const Group group{{Rank(0), Rank(1), Rank(2)}, me};
    auto exchange = start_all_to_all(transport, group, {77, "exchange"}, send, to, receive, from);
    wait(transport, *exchange, 10);

    const std::vector<CountedBytes> counted = transport.take();
    REQUIRE(counted.size() == 4);  // two peers, two directions; a rank's own part crosses nothing
    int64_t sent = 0;
    for (const CountedBytes& c : counted) {
      CHECK(c.key == 77);
      CHECK(c.num_messages == 1);
      CHECK(c.bytes == (me + 1) * (c.peer.value + 1));
      if (c.is_sent) sent += c.bytes;
    }
    const std::vector<int64_t> own = transport.bytes_sent();
    CHECK(sent == std::accumulate(own.begin(), own.end(), int64_t{0}));
    CHECK(transport.take().empty());
  });
}

}  // namespace
}  // namespace piper::comm
