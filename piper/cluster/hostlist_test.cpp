#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/hostlist.h>

#include <algorithm>
#include <random>
#include <set>

namespace piper::cluster {
namespace {

using Names = std::vector<std::string>;

Names expand(const std::string& text) { return expand_hostlist(text, "--nodes"); }

}  // namespace

TEST_CASE("a host list is expanded as Slurm does: ranges, padding, several brackets, plain names") {
  CHECK(expand("node[001-003,017],x12") ==
        Names{"node001", "node002", "node003", "node017", "x12"});
  CHECK(expand("r[1-2]n[09-10]") == Names{"r1n09", "r1n10", "r2n09", "r2n10"});
  CHECK(expand("n[8-11]") == Names{"n8", "n9", "n10", "n11"});
  CHECK(expand("a[1]b") == Names{"a1b"});
  CHECK(expand("login") == Names{"login"});
  CHECK(expand("n[3,1,1]") == Names{"n3", "n1", "n1"});
}

TEST_CASE("what is no host list is refused in one line that shows it") {
  for (const char* wrong : {"", "a,", ",a", "n[1-", "n[1-2", "n[2-1]", "n[a-b]", "n[]", "n]", "n 1",
                            "n[1-2-3]", "n[-1]", "n[99999999999999999999]"}) {
    CAPTURE(wrong);
    try {
      expand(wrong);
      FAIL("accepted");
    } catch (const InvalidInput& error) {
      CHECK(error.problems().size() == 1);
      CHECK(std::string(error.what()).starts_with("--nodes is '"));
    }
  }
  CHECK_THROWS_AS(expand("n[1-1000000]"), InvalidInput);
  CHECK_THROWS_AS(expand(std::string(254, 'n')), InvalidInput);
  CHECK_THROWS_WITH(expand("n[1\n]"), doctest::Contains("'1?' is neither"));
  CHECK_THROWS_AS(expand("n[1-1000]m[1-1000]"), InvalidInput);
}

TEST_CASE("hosts are compressed to ranges that keep their padding") {
  CHECK(compress_hostlist(Names{"node001", "node002", "node004"}) == "node[001-002,004]");
  CHECK(compress_hostlist(Names{"n10", "n9", "n8", "login"}) == "n[8-10],login");
  CHECK(compress_hostlist(Names{"n098", "n099", "n100", "n0101"}) == "n[098-100,0101]");
  CHECK(compress_hostlist(Names{"n99", "n0100"}) == "n[99,0100]");
  CHECK(compress_hostlist(Names{"n7"}) == "n7");
  CHECK(compress_hostlist(Names{"n", "n1"}) == "n,n1");
  CHECK(compress_hostlist(Names{}) == "");
}

TEST_CASE("expanding what was compressed gives the same set of hosts") {
  std::mt19937 random(20261122);
  for (int trial = 0; trial < 300; ++trial) {
    std::set<std::string> hosts;
    const size_t count = 1 + random() % 30;
    while (hosts.size() < count) {
      const std::string prefix = std::vector<std::string>{"n", "node", "r2-c", "7x"}[random() % 4];
      std::string number = std::to_string(random() % 120);
      if (random() % 2 == 0) number.insert(0, random() % 3, '0');
      hosts.insert(prefix + number);
    }
    const Names list(hosts.begin(), hosts.end());
    const Names back = expand(compress_hostlist(list));
    CAPTURE(compress_hostlist(list));
    CHECK(back.size() == hosts.size());
    CHECK(std::set(back.begin(), back.end()) == hosts);
  }
}

TEST_CASE("tasks of nodes are counted as Slurm writes them") {
  const auto tasks = [](const char* text, size_t nodes) {
    return expand_tasks_per_node(text, nodes, "--ranks-per-node");
  };
  CHECK(tasks("8", 3) == std::vector<int64_t>{8, 8, 8});
  CHECK(tasks("8(x2),4", 3) == std::vector<int64_t>{8, 8, 4});
  for (const char* wrong : {"8,8", "0", "", "8(x2", "8(x)", "x", "8(x2),4,1", "8(x999999999)"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(tasks(wrong, 3), InvalidInput);
  }
}

}  // namespace piper::cluster
