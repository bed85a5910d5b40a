#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>
#include <testing/base/text.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace piper::comm {
namespace {

std::vector<std::byte> bytes(size_t size, int value = 1) { return {size, std::byte(value)}; }

std::string thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_CASE("whoever posts second completes the transfer, whichever side that is") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const auto sent = bytes(5, 9);
  auto received = bytes(5, 0);
  const auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  CHECK_FALSE(send->done());
  const auto receive = b->post_receive(Rank(0), {1, "x"}, 0, received);
  CHECK(send->done());
  CHECK(receive->done());
  CHECK(received == sent);

  auto again = bytes(5, 0);
  const auto early = b->post_receive(Rank(0), {2, "y"}, 0, again);
  CHECK_FALSE(early->done());
  a->post_send(Rank(1), {2, "y"}, 0, sent);
  CHECK(early->done());
  CHECK(again == sent);
}

TEST_CASE("a long message is copied by whichever of the two waits first") {
  constexpr size_t kLong = size_t{1} << 20;
  const auto sent = bytes(kLong, 9);
  auto received = bytes(kLong, 0);
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  const auto receive = b->post_receive(Rank(0), {1, "x"}, 0, received);
  SUBCASE("the sender") { CHECK(a->wait_completion(a->wait_completion(~uint64_t{0}, 0), 0) > 0); }
  SUBCASE("the receiver") { CHECK(b->wait_completion(b->wait_completion(~uint64_t{0}, 0), 0) > 0); }
  CHECK(send->done());
  CHECK(receive->done());
  CHECK(received == sent);
}

TEST_CASE("a long message that one side drops is copied first: the other's buffer is whole") {
  constexpr size_t kLong = size_t{1} << 20;
  const auto sent = bytes(kLong, 9);
  auto received = bytes(kLong, 0);
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  auto receive = b->post_receive(Rank(0), {1, "x"}, 0, received);
  bool sender_drops = true;
  SUBCASE("the sender") {}
  SUBCASE("the receiver") { sender_drops = false; }
  (sender_drops ? send : receive).reset();
  CHECK((sender_drops ? receive : send)->done());
  CHECK(received == sent);
}

TEST_CASE("messages are matched by source, key and part, not by order; zero bytes are a message") {
  LocalWorld world(3);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1)), c = world.endpoint(Rank(2));
  std::vector<std::vector<std::byte>> received(4, bytes(1, 0));
  const auto one = bytes(1, 1), two = bytes(1, 2), three = bytes(1, 3);
  const auto s1 = a->post_send(Rank(2), {1, "x"}, 0, one);
  const auto s2 = a->post_send(Rank(2), {1, "x"}, 1, two);
  const auto s3 = b->post_send(Rank(2), {1, "x"}, 0, three);
  const auto s4 = a->post_send(Rank(2), {2, "y"}, 0, {});
  const auto r4 = c->post_receive(Rank(0), {2, "y"}, 0, {});
  const auto r3 = c->post_receive(Rank(1), {1, "x"}, 0, received[2]);
  const auto r2 = c->post_receive(Rank(0), {1, "x"}, 1, received[1]);
  CHECK(r4->done());
  CHECK_FALSE(s1->done());
  const auto r1 = c->post_receive(Rank(0), {1, "x"}, 0, received[0]);
  CHECK(received[0] == one);
  CHECK(received[1] == two);
  CHECK(received[2] == three);
  CHECK(a->bytes_sent() == std::vector<int64_t>{0, 0, 2});
  CHECK(b->bytes_sent() == std::vector<int64_t>{0, 0, 1});
}

TEST_CASE("a rank may send to itself") {
  LocalWorld world(1);
  const auto self = world.endpoint(Rank(0));
  const auto sent = bytes(3, 4);
  auto received = bytes(3, 0);
  const auto receive = self->post_receive(Rank(0), {1, "x"}, 0, received);
  const auto send = self->post_send(Rank(0), {1, "x"}, 0, sent);
  CHECK(receive->done());
  CHECK(send->done());
  CHECK(received == sent);
}

TEST_CASE(
    "a difference in size is an error on both sides that shows both sizes and the operation") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const auto sent = bytes(8);
  auto received = bytes(4, 7);
  const auto send = a->post_send(Rank(1), {1, "F3 dispatch"}, 2, sent);
  const auto receive = b->post_receive(Rank(0), {1, "F3 dispatch"}, 2, received);
  const std::string what =
      "sizes differ in 'F3 dispatch' (part 2): rank 0 sends 8 bytes, rank 1 receives 4 bytes";
  CHECK(thrown_by([&] { send->done(); }) == "rank 0: " + what);
  CHECK(thrown_by([&] { receive->done(); }) == "rank 1: " + what);
  CHECK(received == bytes(4, 7));
}

TEST_CASE("waiting returns at a completion, at once when one was missed, and gives up in time") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const uint64_t seen = a->wait_completion(~uint64_t{0}, 0);
  CHECK(seconds_of([&] { CHECK(a->wait_completion(seen, 0.05) == seen); }) >= 0.05);
  const auto sent = bytes(1);
  auto received = bytes(1);
  const auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    b->post_receive(Rank(0), {1, "x"}, 0, received);
  });
  const uint64_t after = a->wait_completion(seen, 10);
  other.join();
  CHECK(after == seen + 1);
  CHECK(a->wait_completion(seen, 10) == after);
  CHECK(send->done());
}

TEST_CASE(
    "of messages that release nothing only the last wakes; one that releases and a mismatch do") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const auto sent = bytes(4);
  auto received = bytes(4 * 4, 0);
  Completions completions({false, false, true, false});
  std::vector<std::shared_ptr<Request>> receives, sends;
  for (uint32_t i = 0; i < 4; ++i) {
    receives.push_back(
        b->post_receive(Rank(0), {1, "x"}, i, std::span(received).subspan(size_t{4} * i, 4)));
    completions.expect();
    receives.back()->tell(completions, static_cast<int32_t>(i));
  }
  uint64_t seen = b->wait_completion(~uint64_t{0}, 0);
  const auto wakes = [&](uint32_t message) {
    sends.push_back(a->post_send(Rank(1), {1, "x"}, message, sent));
    const uint64_t before = std::exchange(seen, b->wait_completion(seen, 0));
    return seen != before;
  };
  CHECK_FALSE(wakes(1));
  CHECK(receives[1]->done());
  CHECK(wakes(2));
  CHECK_FALSE(wakes(0));
  CHECK(wakes(3));
  std::vector<int32_t> taken;
  completions.take(taken);
  CHECK(taken == std::vector<int32_t>{1, 2, 0, 3});

  // Two more are expected; the first that comes has another size than its receive.
  for (uint32_t i = 0; i < 2; ++i) {
    receives[i] = b->post_receive(Rank(0), {2, "y"}, i, std::span(received).subspan(0, 4 + i));
    completions.expect();
    receives[i]->tell(completions, static_cast<int32_t>(i));
  }
  sends.push_back(a->post_send(Rank(1), {2, "y"}, 1, sent));
  CHECK(b->wait_completion(seen, 0) != seen);
  CHECK_THROWS_AS(static_cast<void>(receives[1]->done()), CommError);
}

TEST_CASE("a failure wakes everyone: pending and later calls name the failed rank and its reason") {
  LocalWorld world(3);
  auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1)), c = world.endpoint(Rank(2));
  auto received = bytes(1);
  const auto pending = a->post_receive(Rank(1), {1, "F0 combine"}, 0, received);
  const uint64_t seen = a->wait_completion(~uint64_t{0}, 0);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c->fail("out of memory", Fault::kRun);
  });
  CHECK(seconds_of([&] { CHECK(a->wait_completion(seen, 30) != seen); }) < 20);
  other.join();
  CHECK(thrown_by([&] { pending->done(); }) ==
        "rank 0: receive 'F0 combine' from rank 1, 1 bytes: rank 2 failed: out of memory");
  CHECK(contains(thrown_by([&] {
                   b->post_send(Rank(0), {2, "x"}, 0, {});
                 }),
                 "rank 2 failed: out of memory"));
  const uint64_t now = b->wait_completion(~uint64_t{0}, 0);
  CHECK(contains(thrown_by([&] { b->wait_completion(now, 10); }), "rank 2 failed: out of memory"));
  b->fail("something later", Fault::kRun);
  CHECK(world.failed_rank() == Rank(2));
}

TEST_CASE("an endpoint that goes with requests outstanding is reported to the others") {
  LocalWorld world(2);
  auto a = world.endpoint(Rank(0));
  const auto b = world.endpoint(Rank(1));
  const auto sent = bytes(1);
  SUBCASE("the request still held") {
    const auto send = a->post_send(Rank(1), {1, "F1 send"}, 0, sent);
    a.reset();
    CHECK(world.failure_reason() ==
          "left with 1 unfinished request, among them: send 'F1 send' to rank 1, 1 bytes");
  }
  SUBCASE("the request dropped before") {
    a->post_send(Rank(1), {1, "F1 send"}, 0, sent);
    CHECK_FALSE(world.failed_rank().valid());
    a.reset();
    CHECK(world.failure_reason() ==
          "left with 1 unfinished request, among them: send 'F1 send' to rank 1, 1 bytes");
  }
  CHECK(contains(thrown_by([&] {
                   b->post_send(Rank(0), {2, "x"}, 0, {});
                 }),
                 "rank 0 failed: left with"));
}

TEST_CASE("a dropped request is withdrawn: its buffer is not touched afterwards") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  auto received = bytes(1, 5);
  b->post_receive(Rank(0), {1, "x"}, 0, received);
  const auto sent = bytes(1, 6);
  const auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  CHECK_FALSE(send->done());
  CHECK(received == bytes(1, 5));
  CHECK(a->unmatched() == "rank 0: send 'x' to rank 1, 1 bytes");
}

TEST_CASE("a request dropped in the middle of a copy waits for its end") {
  constexpr size_t kSize = 16 << 20;
  for (int run = 0; run < 10; ++run) {
    LocalWorld world(2);
    const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
    const auto sent = bytes(kSize, 6);
    auto received = bytes(kSize, 5);
    auto receive = b->post_receive(Rank(0), {1, "x"}, 0, received);
    std::atomic<bool> posting{false};
    std::thread sender([&] {
      posting = true;
      a->post_send(Rank(1), {1, "x"}, 0, sent);
    });
    while (!posting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(150 * run));
    receive.reset();
    // All of it or nothing; and nobody writes any more (ThreadSanitizer watches).
    CHECK((received == sent || received == bytes(kSize, 5)));
    sender.join();
  }
}

TEST_CASE("a rank has one endpoint at a time and posts nothing twice") {
  LocalWorld world(2);
  auto a = world.endpoint(Rank(0));
  CHECK_THROWS_AS(world.endpoint(Rank(0)), InternalError);
  CHECK_THROWS_AS(world.endpoint(Rank(2)), InternalError);
  const auto sent = bytes(1);
  auto received = bytes(1);
  const auto send = a->post_send(Rank(1), {1, "x"}, 0, sent);
  CHECK_THROWS_AS(a->post_send(Rank(1), {1, "x"}, 0, sent), InternalError);
  {
    const auto b = world.endpoint(Rank(1));
    CHECK(b->post_receive(Rank(0), {1, "x"}, 0, received)->done());
  }
  a.reset();
  CHECK_NOTHROW(world.endpoint(Rank(0)));
  CHECK_FALSE(world.failed_rank().valid());
}

TEST_CASE(
    "the exception of the rank that failed first comes out, and every other rank's wait ends "
    "long before its time is up") {
  LocalWorld world(5);
  std::vector<std::string> heard(5);
  const auto run = [&] {
    run_ranks(world, [&](Transport& transport) {
      if (transport.rank() == Rank(3)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        throw InvalidInput("the data ends in the middle of a batch");
      }
      std::vector<std::byte> buffer(16);
      const auto operation = start_receive(transport, Rank(3), {7, "B2 receive"}, buffer);
      heard[transport.rank().index()] = thrown_by([&] { wait(transport, *operation, 60); });
      throw CommError(heard[transport.rank().index()]);
    });
  };
  CHECK(seconds_of([&] { CHECK_THROWS_AS(run(), InvalidInput); }) < 20);
  for (const int r : {0, 1, 2, 4}) {
    CAPTURE(heard[r]);
    CHECK(
        contains(heard[r],
                 "'B2 receive' from rank 3, 16 bytes: rank 3 failed: wrong input: the data ends in "
                 "the middle of a batch"));
  }
}

TEST_CASE("a rank that simply returns in the middle is named") {
  LocalWorld world(2);
  const std::string error = thrown_by([&] {
    run_ranks(world, [](Transport& transport) {
      std::vector<std::byte> buffer(4);
      if (transport.rank() == Rank(1)) {
        start_send(transport, Rank(0), {9, "never awaited"}, buffer);
        return;
      }
      const auto operation = start_receive(transport, Rank(1), {8, "F0 receive"}, buffer);
      wait(transport, *operation, 60);
    });
  });
  CHECK(error ==
        "rank 1: left with 1 unfinished request, among them: send 'never awaited' to rank 0, 4 "
        "bytes");
}

}  // namespace
}  // namespace piper::comm
