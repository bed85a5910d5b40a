#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <piper/base/error.h>
#include <piper/comm/guarded_acceptor.h>
#include <piper/comm/local.h>
#include <piper/comm/network.h>
#include <piper/comm/operations.h>
#include <piper/comm/process_world.h>
#include <piper/comm/secret.h>
#include <sys/socket.h>
#include <testing/base/text.h>
#include <testing/comm/world_patterns.h>
#include <tests/switches.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

namespace piper::comm {
namespace {

namespace fs = std::filesystem;

// Processes of a run, each a thread of this one with a world of its own: as good as processes for
// all but their deaths (process_fault_test.cpp).
struct Run {
  explicit Run(int64_t num_processes, int64_t num_ranks, const std::string& address = kLoopback)
      : num_ranks(num_ranks) {
    const Listener listener = listen_on(address, 0);
    for (int64_t p = 0; p < num_processes; ++p)
      launches.push_back({.process = p,
                          .num_processes = num_processes,
                          .master_address = address,
                          .master_port = listener.port,
                          .secret = "s",
                          .listen_fd = p == 0 ? listener.fd : -1});
    options.control.connect_timeout_seconds = 20;
  }

  // What each body throws, or "".
  std::vector<std::string> execute(const std::function<void(World&)>& body) const {
    std::vector<std::string> thrown(launches.size());
    std::vector<std::thread> threads;
    for (size_t p = 0; p < launches.size(); ++p)
      threads.emplace_back([&, p] {
        try {
          const auto world = make_process_world(launches[p], num_ranks, options);
          body(*world);
        } catch (const std::exception& error) {
          thrown[p] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }

  int64_t num_ranks;
  std::vector<Launch> launches;
  ProcessOptions options;
};

using Strings = std::vector<std::string>;

TEST_CASE("messages and sums over TCP are those of the local world, for any spread of ranks") {
  for (const auto& [num_processes, num_ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {4, 4}, {2, 4}, {3, 6}}) {
    CAPTURE(num_processes);
    CAPTURE(num_ranks);
    LocalWorld local(num_ranks);
    REQUIRE(wrong_patterns(local) == "");
    std::vector<std::string> wrong(num_processes);
    const Run run(num_processes, num_ranks);
    CHECK(run.execute([&](World& world) { wrong[world.process()] = wrong_patterns(world); }) ==
          Strings(num_processes));
    CHECK(wrong == Strings(num_processes));
  }
}

TEST_CASE("processes meet and exchange over IPv6 as over IPv4") {
  try {
    close(listen_on("::1", 0).fd);
  } catch (const std::exception& error) {
    testing::skip_case(fmt::format("no IPv6 here: {}", error.what()));
    return;
  }
  std::vector<std::string> wrong(2);
  const Run run(2, 4, "::1");
  CHECK(run.execute([&](World& world) { wrong[world.process()] = wrong_patterns(world); }) ==
        Strings(2));
  CHECK(wrong == Strings(2));
}

TEST_CASE("a world knows its ranks and shares texts by process") {
  const Run run(3, 6);
  CHECK(run.execute([&](World& world) {
    CHECK(world.size() == 6);
    CHECK(world.num_processes() == 3);
    CHECK(world.local_ranks() ==
          std::vector{Rank(2 * world.process()), Rank(2 * world.process() + 1)});
    for (const std::string round : {"a", "b"})
      CHECK(world.share("names", round + std::to_string(world.process())) ==
            Strings{round + "0", round + "1", round + "2"});
    CHECK(world.share("large", std::string(1 << 20, 'x')).back().size() == 1 << 20);
  }) == Strings(3));
}

// Rank 0 sends `sent` bytes to rank 1, which expects `expected`; `late` waits before it posts.
Strings disagree(size_t sent, size_t expected, int64_t late) {
  Strings thrown(2);
  const Run run(2, 2);
  run.execute([&](World& world) {
    try {
      run_ranks(world, [&](Transport& transport) {
        if (transport.rank().value == late)
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::vector<std::byte> bytes(transport.rank().value == 0 ? sent : expected);
        const auto first = transport.rank().value == 0
                               ? start_send(transport, Rank(1), {1, "F3 dispatch"}, bytes)
                               : start_receive(transport, Rank(0), {1, "F3 dispatch"}, bytes);
        wait(transport, *first, 20);
        std::vector<std::byte> none;
        const auto next =
            start_receive(transport, Rank(1 - transport.rank().value), {2, "x"}, none);
        wait(transport, *next, 20);
      });
    } catch (const CommError& error) {
      thrown[world.process()] = error.what();
    }
  });
  return thrown;
}

TEST_CASE("ranks that disagree about a size both show both sides, whoever posts first") {
  for (const auto& [sent, expected] :
       std::vector<std::pair<size_t, size_t>>{{8, 4}, {100000, 4}, {8, 100000}, {0, 1}})
    for (const int64_t late : {0, 1})
      for (const std::string& thrown : disagree(sent, expected, late)) {
        CAPTURE(thrown);
        CHECK(contains(thrown,
                       fmt::format("sizes differ in 'F3 dispatch' (part 0): rank 0 sends {} bytes, "
                                   "rank 1 receives {} bytes",
                                   sent, expected)));
      }
}

TEST_CASE("a failure in one process ends the waits of all, with its reason") {
  const Run run(3, 3);
  const Strings thrown = run.execute([&](World& world) {
    run_ranks(world, [&](Transport& transport) {
      if (transport.rank() == Rank(1)) throw IoError("the disk is full");
      std::vector<std::byte> bytes(10);
      wait(transport, *start_receive(transport, Rank(1), {1, "B0 receive"}, bytes), 20);
    });
  });
  CHECK(thrown == Strings{"rank 1 failed: the disk is full", "the disk is full",
                          "rank 1 failed: the disk is full"});
}

TEST_CASE("a large message that its sender gives up leaves its receiver waiting, not hanging") {
  const Run run(2, 2);
  std::string unmatched;
  const Strings thrown = run.execute([&](World& world) {
    run_ranks(world, [&](Transport& transport) {
      std::vector<std::byte> large(1 << 20), token(1);
      if (transport.rank() == Rank(0)) {
        { const auto given_up = start_send(transport, Rank(1), {1, "given up"}, large); }
        wait(transport, *start_send(transport, Rank(1), {2, "token"}, token), 20);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return;
      }
      wait(transport, *start_receive(transport, Rank(0), {2, "token"}, token), 20);
      const auto receive = start_receive(transport, Rank(0), {1, "given up"}, large);
      CHECK_THROWS_AS(wait(transport, *receive, 0.1), CommError);
      unmatched = transport.unmatched();
    });
  });
  CHECK(unmatched == "rank 1: receive 'given up' from rank 0, 1048576 bytes");
  CHECK(contains(thrown[0], "left with 1 unfinished request"));
}

TEST_CASE("a process that ends by an exception is named by those that wait for it") {
  const Run run(3, 3);
  const Strings thrown = run.execute([&](World& world) {
    if (world.process() == 2) throw InvalidInput("bad data");
    world.share("sizes", "");
  });
  CHECK(contains(thrown[0], "sharing 'sizes': rank 2 failed: its process ended by an exception"));
  CHECK(contains(thrown[1], "sharing 'sizes': rank 2 failed: its process ended by an exception"));
  CHECK(thrown[2] == "bad data");
}

TEST_CASE("whoever does not share, or shares something else, is named") {
  SUBCASE("not at all") {
    Run run(2, 2);
    run.options.control.heartbeat_seconds = 0.1;
    run.options.control.share_timeout_seconds = 1;
    std::atomic<bool> over{false};
    const Strings thrown = run.execute([&](World& world) {
      world.note(Rank(world.process()), 7, "save");
      if (world.process() == 1) {
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      try {
        world.share("sizes", "");
      } catch (const CommError&) {
        over = true;
        throw;
      }
      over = true;
    });
    CHECK(contains(thrown[0], "sharing 'sizes': rank 1 (host "));
    CHECK(contains(thrown[0],
                   "does not come while the others wait in 'sizes'; last: step 7, 'save'"));
  }
  SUBCASE("something else") {
    const Run run(2, 2);
    const Strings thrown =
        run.execute([&](World& world) { world.share("x" + std::to_string(world.process()), ""); });
    CHECK((contains(thrown[0], "it shares 'x1', others share 'x0'") ||
           contains(thrown[0], "it shares 'x0', others share 'x1'")));
  }
}

TEST_CASE("a process that never comes is named") {
  Run run(3, 3);
  run.launches.pop_back();
  run.options.control.connect_timeout_seconds = 3;
  for (const std::string& thrown : run.execute([](World&) {}))
    CHECK(contains(thrown, "rank 2 failed: process 2 has not joined in time"));
}

TEST_CASE("processes that disagree about the number of ranks say so at once") {
  Run run(2, 2);
  Run other = run;
  other.num_ranks = 4;
  other.launches.erase(other.launches.begin());
  run.launches.pop_back();
  Strings theirs;
  std::thread thread([&] { theirs = other.execute([](World&) {}); });
  const Strings ours = run.execute([](World&) {});
  thread.join();
  const std::string problem =
      "it was started as one of 2 processes with 4 ranks, process 0 as one of 2 with 2";
  CHECK(contains(ours[0], "process 1 cannot join: " + problem));
  CHECK(contains(theirs[0], problem));
}

TEST_CASE("a rank that is slow for longer than the time limit raises no alarm") {
  Run run(3, 3);
  run.options.control.heartbeat_seconds = 0.1;
  run.options.control.heartbeat_timeout_seconds = 2;
  CHECK(run.execute([&](World& world) {
    run_ranks(world, [&](Transport& transport) {
      if (transport.rank() == Rank(1)) std::this_thread::sleep_for(std::chrono::seconds(5));
      std::vector<int64_t> send(3, transport.rank().value), received(3);
      const Group group{{Rank(0), Rank(1), Rank(2)}, transport.rank().value};
      wait(transport, *start_exchange_counts(transport, group, {1, "counts"}, 1, send, received),
           60);
      CHECK(received == std::vector<int64_t>{0, 1, 2});
    });
  }) == Strings(3));
}

TEST_CASE("launcher and strategy must agree; a port serves one run") {
  const Launch four{.launcher = Launcher::kTorchrun, .num_processes = 4};
  std::string problem;
  try {
    make_process_world(four, 6);
  } catch (const InvalidInput& error) {
    problem = error.what();
  }
  CHECK(contains(problem, "torchrun started 4 processes, and the strategy needs 6 ranks"));

  const Listener taken = listen_on(kLoopback, 0);
  try {
    make_process_world(
        {.num_processes = 2, .master_address = kLoopback, .master_port = taken.port, .secret = "s"},
        2);
  } catch (const InvalidInput& error) {
    problem = error.what();
  }
  close(taken.fd);
  CHECK(contains(problem, fmt::format("cannot listen on 127.0.0.1:{}: Address already in use; does "
                                      "another run use this port?",
                                      taken.port)));
  CHECK_THROWS_AS(numeric_address("no-such-interface.invalid"), InvalidInput);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, kLoopback, &address.sin_addr);
  return address;
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Until the other side closes.
size_t bytes_until_end(int fd) {
  std::vector<char> buffer(4096);
  size_t total = 0;
  for (;;) {
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size <= 0) return total;
    total += static_cast<size_t>(size);
  }
}

// Local addresses of the listening sockets of this process, as /proc writes them.
std::set<std::string> listening() {
  std::set<std::string> inodes, addresses;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone);
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() > 9 && word[3] == "0A" && inodes.contains(word[9]))
        addresses.insert(word[1].substr(0, word[1].find(':')));
    }
  }
  return addresses;
}

// A knock of the run with this secret, as a process of it would send it.
std::vector<std::byte> knock(const std::string& secret) {
  return make_frame(FrameKind::kKnock,
                    encode(internal::make_knock({.purpose = "control", .secret = secret})));
}

void say(int fd, std::span<const std::byte> bytes) {
  REQUIRE(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

TEST_CASE("strangers are dropped without a word, those who know the secret are challenged") {
  Run run(2, 2);
  run.options.control.introduction_timeout_seconds = 1;
  const int port = run.launches[0].master_port;
  const Launch member = run.launches[1];
  std::string refused;
  std::set<std::string> before, after;
  std::thread stranger([&] {
    std::vector<int> crowd(2 * internal::kMaxStrangers);  // more than are held at a time
    for (int& fd : crowd) fd = connect_to(port);
    const int silent = connect_to(port), garbage = connect_to(port), half = connect_to(port),
              wrong = connect_to(port), guest = connect_to(port);
    say(garbage, std::as_bytes(std::span(std::string_view("GET / HTTP/1.1"))));
    const auto foreign = knock("another run's secret"), known = knock(member.secret);
    say(half, std::span(known).first(known.size() - 1));
    say(wrong, foreign);
    say(guest, known);
    CHECK(bytes_until_end(garbage) == 0);
    CHECK(bytes_until_end(silent) == 0);
    CHECK(bytes_until_end(half) == 0);
    CHECK(bytes_until_end(wrong) == 5);   // no
    CHECK(bytes_until_end(guest) == 41);  // the challenge, and a second later the end
    for (const int fd : {garbage, half, silent, wrong, guest}) close(fd);
    Launch other = member;
    other.secret = "another run's secret";
    try {
      make_process_world(other, 2);
    } catch (const CommError& error) {
      refused = error.what();
    }
    before = listening();
    const auto world = make_process_world(member, 2, run.options);
    CHECK(wrong_patterns(*world) == "");
    after = listening();
    world->share("looked", "");
    for (const int fd : crowd) close(fd);
  });
  run.launches.pop_back();
  CHECK(run.execute([&](World& world) {
    CHECK(wrong_patterns(world) == "");
    world.share("looked", "");
  }) == Strings(1));
  stranger.join();
  CHECK(contains(refused, "rank 1: cannot join the run at 127.0.0.1:"));
  CHECK(contains(refused, "another PIPER_SECRET?"));
  CHECK(before == std::set<std::string>{"0100007F"});
  CHECK(after.empty());
}

TEST_CASE("a knock that was overheard lets nobody in, however often it is said again") {
  Run run(2, 2);
  const int port = run.launches[0].master_port;
  const Launch member = run.launches[1];
  run.launches.pop_back();
  double waited = 0;
  std::thread crowd([&] {
    std::vector<int> replayed(600);
    const auto overheard = knock(member.secret);
    for (int& fd : replayed) {
      fd = connect_to(port);
      [[maybe_unused]] const ssize_t said =
          ::send(fd, overheard.data(), overheard.size(), MSG_NOSIGNAL);
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto world = make_process_world(member, 2, run.options);
    waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    CHECK(wrong_patterns(*world) == "");
    for (const int fd : replayed) close(fd);
  });
  CHECK(run.execute([&](World& world) { CHECK(wrong_patterns(world) == ""); }) == Strings(1));
  crowd.join();
  CHECK(waited < 2);
}

TEST_CASE("members get in while strangers come without end") {
  const Run run(3, 3);
  const int port = run.launches[0].master_port;
  std::atomic<bool> over{false};
  std::thread flood([&] {
    std::deque<int> held;
    while (!over) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) continue;
      const sockaddr_in address = loopback(port);
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
      held.push_back(fd);
      if (held.size() <= 500) continue;
      close(held.front());
      held.pop_front();
    }
    for (const int fd : held) close(fd);
  });
  CHECK(run.execute([&](World& world) { world.share("met", ""); }) == Strings(3));
  over = true;
  flood.join();
}

TEST_CASE("whatever is written for all interfaces is refused") {
  for (const std::string name : {"0.0.0.0", "0", "0x0", "0x0.0", "00", "000.0.0.0", "0.0", "0.0.0",
                                 "::", "::0", "0::", "0:0:0:0:0:0:0:0", "::0.0.0.0",
                                 "::ffff:0.0.0.0", "::ffff:0:0", "0:0:0:0:0:ffff:0:0", "::%1"}) {
    CAPTURE(name);
    std::string problem;
    try {
      problem = "taken for " + numeric_address(name);
    } catch (const InvalidInput& error) {
      problem = error.what();
    }
    CAPTURE(problem);
    CHECK(contains(problem, fmt::format("'{}' would listen on all interfaces", name)));
  }
  CHECK_THROWS_AS(numeric_address("::%lo"), InvalidInput);
  CHECK_THROWS_AS(numeric_address(""), InvalidInput);
  CHECK_THROWS_AS(listen_on("::", 0), InvalidInput);
  CHECK(numeric_address("127.1") == "127.0.0.1");
  CHECK(numeric_address("lo") == "127.0.0.1");
}

TEST_CASE("a socket that listens everywhere serves no run, unless the run says so") {
  const Listener everywhere = listen_on(kLoopback, 0, Reach::kEverywhere);
  CHECK(listening() == std::set<std::string>{"00000000"});
  CHECK_THROWS_AS(check_reach(everywhere.fd, Reach::kOneAddress), InvalidInput);
  CHECK_NOTHROW(check_reach(everywhere.fd, Reach::kEverywhere));

  Run run(2, 2);
  close(run.launches[0].listen_fd);
  run.launches[0].listen_fd = everywhere.fd;
  run.launches[1].master_port = everywhere.port;
  run.options.control.connect_timeout_seconds = 0.2;
  CHECK(contains(run.execute([](World&) {})[0], "listens on all interfaces"));

  run.options.control.connect_timeout_seconds = 20;
  run.options.control.listen_everywhere = true;
  CHECK(run.execute([](World& world) { CHECK(wrong_patterns(world) == ""); }) == Strings(2));
}

}  // namespace
}  // namespace piper::comm
