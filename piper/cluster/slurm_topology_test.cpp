#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/slurm_topology.h>

namespace piper::cluster {
namespace {

using Names = std::vector<std::string>;

GroupsOfNodes parse(const std::string& text) { return parse_slurm_topology(text, "topology.conf"); }

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("topology.conf: a tree of switches becomes the groups of every node, innermost first") {
  const GroupsOfNodes groups = parse(R"(
# leaves
SwitchName=s1 Nodes=n[1-2] LinkSpeed=100
switchname=s2 nodes=n3,n4   # keys in any case
SwitchName=s3 \
  Nodes=n5
SwitchName=r1 Switches=s[1-2]
SwitchName=r2 Switches=s3
SwitchName=top Switches=r[1-2])");
  CHECK(groups.size() == 5);
  CHECK(groups.at("n1") == Names{"s1", "r1", "top"});
  CHECK(groups.at("n4") == Names{"s2", "r1", "top"});
  CHECK(groups.at("n5") == Names{"s3", "r2", "top"});
}

TEST_CASE("a shorter branch stands alone on the levels that it lacks") {
  const GroupsOfNodes groups = parse(
      "SwitchName=s1 Nodes=n1\nSwitchName=r1 Switches=s1\nSwitchName=s9 Nodes=n9\n"
      "SwitchName=top Switches=r1,s9 Nodes=service\n");
  CHECK(groups.at("n1") == Names{"s1", "r1", "top"});
  CHECK(groups.at("n9") == Names{"s9", "s9", "top"});
  CHECK(groups.at("service") == Names{"service", "service", "top"});
}

TEST_CASE("what is wrong in topology.conf is told with its line, all at once") {
  CHECK(refusal("").find("no switch") != std::string::npos);
  CHECK(refusal("SwitchName=s1").find("topology.conf:1: switch s1 holds neither") == 0);
  CHECK(refusal("\nNodes=n1").find("topology.conf:2: a line without SwitchName=") == 0);
  CHECK(refusal("SwitchName=s1 Node=n1").find("allowed: SwitchName, Nodes") != std::string::npos);
  CHECK(refusal("SwitchName=s1 Nodes=n[1-").find("bracket is not closed") != std::string::npos);
  CHECK(refusal("SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n1").find("node n1 is in switch s1") !=
        std::string::npos);
  CHECK(refusal("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2").find("there twice") !=
        std::string::npos);
  CHECK(refusal("SwitchName=a Switches=b").find("switch b is described nowhere") !=
        std::string::npos);
  CHECK(refusal("SwitchName=a Switches=b\nSwitchName=b Switches=a").find("circle") !=
        std::string::npos);
  CHECK(refusal("SwitchName=s Nodes=n\nSwitchName=a Switches=s\nSwitchName=b Switches=s")
            .find("switch s is below a and below b") != std::string::npos);
  const std::string both = refusal("SwitchName=s1\nSwitchName=s2");
  CHECK(both.find("topology.conf:1") != std::string::npos);
  CHECK(both.find("topology.conf:2") != std::string::npos);
  std::string deep = "SwitchName=s0 Nodes=n\n";
  for (int i = 0; i < 40; ++i)
    deep += "SwitchName=s" + std::to_string(i + 1) + " Switches=s" + std::to_string(i) + "\n";
  CHECK(refusal(deep).find("levels") != std::string::npos);
}

TEST_CASE("groups of nodes from JSON: host lists as keys") {
  const auto read = [](const char* text) { return parse_node_groups(parse_json(text, "f"), "f"); };
  const GroupsOfNodes groups =
      read(R"({"n[1-2]": ["switch 1", "rack 1"], "x": ["switch 2", "rack 1"]})");
  CHECK(groups.at("n2") == Names{"switch 1", "rack 1"});
  CHECK(groups.at("x") == Names{"switch 2", "rack 1"});
  for (const char* wrong : {"{}", "[]", R"({"n": []})", R"({"n": "s"})", R"({"n": [1]})",
                            R"({"n[1-2]": ["s"], "n2": ["s"]})", R"({"n[": ["s"]})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(read(wrong), InvalidInput);
  }
}

TEST_CASE("without a topology the number of a node says where in the machine it is") {
  Cluster machine;
  machine.name = "m";
  machine.levels = {{.name = "node", .num_members = 8},
                    {.name = "switch", .num_members = 4},
                    {.name = "rack", .num_members = 3},
                    {.name = "system", .num_members = 2}};
  const GroupsOfNodes groups = groups_by_number(machine, Names{"n001", "n005", "n013"}, 1);
  CHECK(groups.at("n001") == Names{"switch 0", "rack 0"});
  CHECK(groups.at("n005") == Names{"switch 1", "rack 0"});
  CHECK(groups.at("n013") == Names{"switch 3", "rack 1"});
  CHECK_THROWS_AS(groups_by_number(machine, Names{"n24"}, 0), InvalidInput);
  CHECK_THROWS_AS(groups_by_number(machine, Names{"n0"}, 1), InvalidInput);
  CHECK_THROWS_AS(groups_by_number(machine, Names{"login"}, 0), InvalidInput);
}

}  // namespace piper::cluster
