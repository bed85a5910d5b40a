#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/comm/place.h>

#include <map>

namespace piper::comm {
namespace {

// A world that only shares: what the other processes say is given.
class SharingWorld final : public World {
 public:
  SharingWorld(std::vector<std::string> texts, int64_t ranks_per_process)
      : texts_(std::move(texts)), ranks_per_process_(ranks_per_process) {}
  int64_t size() const override { return num_processes() * ranks_per_process_; }
  std::vector<Rank> local_ranks() const override { return {}; }
  int64_t process() const override { return 0; }
  int64_t num_processes() const override { return static_cast<int64_t>(texts_.size()); }
  std::unique_ptr<Transport> endpoint(Rank) override { return nullptr; }
  Rank failed_rank() const override { return Rank::none(); }
  std::string failure_reason() const override { return ""; }
  Fault failure_fault() const override { return Fault::kRun; }
  std::vector<std::string> share(const std::string&, const std::string& mine) override {
    last = mine;
    return texts_;
  }
  void note(Rank, int64_t, std::string_view) override {}

  std::string last;

 private:
  std::vector<std::string> texts_;
  int64_t ranks_per_process_;
};

std::string text_of(const Place& place) {
  SharingWorld alone({"{\"node\": \"\", \"nic\": 0, \"groups\": []}"}, 1);
  gather_topology(alone, place);
  return alone.last;
}

collective::Topology gathered(const std::vector<Place>& places, int64_t ranks_per_process = 1) {
  std::vector<std::string> texts;
  for (const Place& place : places) texts.push_back(text_of(place));
  SharingWorld world(texts, ranks_per_process);
  return gather_topology(world, places.front());
}

LookUp variables(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

TEST_CASE("a process's place is read from its environment, and defaults to its host and NIC 0") {
  const Place place = place_from(
      variables({{"PIPER_NODE", "n7"}, {"PIPER_NIC", "3"}, {"PIPER_GROUPS", "switch 2, rack 1"}}));
  CHECK(place.node == "n7");
  CHECK(place.nic == 3);
  CHECK(place.groups == std::vector<std::string>{"switch 2", "rack 1"});
  const Place none = place_from(variables({}));
  CHECK(!none.node.empty());
  CHECK(none.nic == 0);
  CHECK(none.groups.empty());
}

TEST_CASE("a malformed place is refused by the variable's name") {
  for (const char* nic : {"-1", "x", "1.5", "256", "99999999999"})
    CHECK_THROWS_WITH_AS(place_from(variables({{"PIPER_NIC", nic}})),
                         doctest::Contains("PIPER_NIC is '"), InvalidInput);
  for (const char* groups : {",", "rack 1,", ",a", "a,,b", " "})
    CHECK_THROWS_WITH_AS(place_from(variables({{"PIPER_GROUPS", groups}})),
                         doctest::Contains("PIPER_GROUPS is '"), InvalidInput);
}

TEST_CASE("units are numbered as they appear, and the ranks of a process share its place") {
  const collective::Topology topology =
      gathered({{"b", 0, {"x"}}, {"a", 1, {"x"}}, {"b", 1, {"x"}}, {"c", 0, {"y"}}}, 2);
  CHECK(topology.unit ==
        std::vector<std::vector<int32_t>>{{0, 0, 1, 1, 0, 0, 2, 2}, {0, 0, 0, 0, 0, 0, 1, 1}});
  CHECK(topology.nic == std::vector<int32_t>{0, 0, 1, 1, 1, 1, 0, 0});
}

TEST_CASE("a node in two groups and unequal numbers of groups are refused") {
  CHECK_THROWS_WITH_AS(gathered({{"a", 0, {"x"}}, {"a", 0, {"y"}}}),
                       doctest::Contains("rank 1: 'a' is in 'y' here"), InvalidInput);
  CHECK_THROWS_WITH_AS(gathered({{"a", 0, {"s", "x"}}, {"b", 0, {"s", "y"}}}),
                       doctest::Contains("rank 1: 's' is in 'y' here"), InvalidInput);
  CHECK_THROWS_WITH_AS(gathered({{"a", 0, {"x"}}, {"b", 0, {}}}),
                       doctest::Contains("PIPER_GROUPS names 0 groups at rank 1 and 1 at rank 0"),
                       InvalidInput);
}

}  // namespace
}  // namespace piper::comm
