#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>

#include <cmath>

using namespace piper;
using namespace piper::cluster;

namespace {

const char* const kSound = R"({
  "name": "toy", "description": "a test", "device": "D", "kind": "cpu",
  "memory_bytes": 1000, "memory_bytes_per_second": 100, "fixed_task_seconds": 1e-6,
  "cores_per_node": 2,
  "levels": [
    {"name": "node", "num_members": 4, "bandwidth_bytes_per_second": 50, "latency_seconds": 0},
    {"name": "rack", "num_members": 3, "bandwidth_bytes_per_second": 5, "latency_seconds": 1e-3,
     "num_nics": 2, "nic_bytes_per_second": 10}],
  "compute": {"fp32": {"peak_flops_per_second": 1e9, "gemm_efficiency": 0.5,
    "gemm_flops_per_second": {"m": [1, 2], "n": [4], "k": [8, 16, 32],
                              "values": [1, 2, 3, 4, 5, 6]},
    "attention_flops_per_second": {"sequence": [128], "head_dim": [64], "values": [7]},
    "attention_backward_flops_per_second": {"sequence": [128], "head_dim": [64], "values": [6]}}},
  "element_wise_bytes_per_second": {"bytes": [1, 1000], "values": [9, 8]},
  "copy_bytes_per_second": {"bytes": [1], "values": [3]},
  "numbers": {"optimizer_bytes_per_second": 4.5},
  "sources": {"memory_bytes": "measured", "levels.node": "assumption: none"}
})";

Json sound() { return parse_json(kSound, "toy.json"); }

// The problems of `json`, joined; "" when there are none.
std::string problems_of(const Json& json) {
  try {
    parse_cluster(json, "toy.json");
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

std::string problems_of_text(const std::string& from, const std::string& to) {
  std::string text = kSound;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  try {
    parse_cluster(parse_json(text, "toy.json"), "toy.json");
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every key of a description arrives") {
  const Cluster c = parse_cluster(sound(), "toy.json");
  CHECK(c.name == "toy");
  CHECK(c.kind == "cpu");
  CHECK(c.memory_bytes == 1000);
  CHECK(c.cores_per_node == 2);
  CHECK(c.fixed_task_seconds == 1e-6);
  REQUIRE(c.levels.size() == 2);
  CHECK(c.levels[1].link.bytes_per_second == 5);
  CHECK(c.levels[1].link.latency_seconds == 1e-3);
  CHECK(c.levels[1].num_nics == 2);
  CHECK(c.levels[1].nic_bytes_per_second == 10);
  const Compute& fp32 = c.compute.at("fp32");
  CHECK(fp32.peak_flops_per_second == 1e9);
  CHECK(fp32.gemm.axes == std::vector<std::string>{"m", "n", "k"});
  CHECK(fp32.gemm.at({2, 4, 16}) == doctest::Approx(5));
  CHECK(fp32.attention.at({128, 64}) == doctest::Approx(7));
  CHECK(fp32.attention_backward.at({128, 64}) == doctest::Approx(6));
  CHECK(c.element_wise.at({1000}) == doctest::Approx(8));
  CHECK(c.copy.at({1}) == doctest::Approx(3));
  CHECK(c.numbers.at("optimizer_bytes_per_second") == 4.5);
  REQUIRE(c.sources.size() == 2);
  CHECK(c.sources[1].source == "assumption: none");
}

TEST_CASE("what is written is what was read") {
  const Json once = to_json(parse_cluster(sound(), "toy.json"));
  CHECK(to_json(parse_cluster(once, "again")).dump() == once.dump());
  CHECK(once["levels"] == sound()["levels"]);
  CHECK(once["compute"] == sound()["compute"]);
  CHECK(once["sources"] == sound()["sources"]);
  CHECK(once.size() == sound().size());
}

TEST_CASE("a minimal description is enough, and nothing that it omits is written") {
  const Json json = parse_json(R"({"name": "x", "device": "d", "kind": "gpu", "memory_bytes": 1,
    "memory_bytes_per_second": 1, "compute": {"bf16": {"peak_flops_per_second": 1}},
    "levels": [{"name": "n", "num_members": 1, "bandwidth_bytes_per_second": 1,
                "latency_seconds": 0}]})",
                               "x.json");
  const Json written = to_json(parse_cluster(json, "x.json"));
  for (const char* key : {"sources", "numbers", "cores_per_node", "element_wise_bytes_per_second"})
    CHECK_FALSE(written.contains(key));
}

TEST_CASE("a NIC that moves nothing and a GEMM above the peak are refused") {
  CHECK(problems_of_text("\"nic_bytes_per_second\": 10", "\"nic_bytes_per_second\": 0") ==
        "toy.json: 'levels[1].nic_bytes_per_second' is 0 with 'num_nics'; allowed: more than 0, or "
        "leave the key out");
  CHECK(problems_of_text(", \"nic_bytes_per_second\": 10", "").empty());
  // The fastest GEMM of the toy does 6 FLOP/s.
  CHECK(
      problems_of_text("\"peak_flops_per_second\": 1e9", "\"peak_flops_per_second\": 5.8").empty());
  CHECK(
      problems_of_text("\"peak_flops_per_second\": 1e9", "\"peak_flops_per_second\": 5.7") ==
      "toy.json: 'compute.fp32.gemm_flops_per_second.values' reach 6; allowed: at most 1.05 times "
      "'peak_flops_per_second' 5.7");
}

TEST_CASE("unknown keys are refused at every depth, with what was meant") {
  CHECK(problems_of_text("\"cores_per_node\"", "\"core_per_node\"") ==
        "toy.json: 'core_per_node' is not a known key; did you mean 'cores_per_node'?");
  CHECK(problems_of_text("\"num_nics\"", "\"num_nisc\"")
            .find("'levels[1].num_nisc' is not a known key; did you mean 'num_nics'?") !=
        std::string::npos);
  CHECK(problems_of_text("\"fp32\"", "\"fp322\"")
            .find("'compute.fp322' is not a known key; did you mean 'fp32'?") != std::string::npos);
  CHECK(problems_of_text("\"gemm_efficiency\"", "\"gemm_eficiency\"")
            .find("'compute.fp32.gemm_eficiency' is not a known key; did you mean "
                  "'gemm_efficiency'?") != std::string::npos);
}

TEST_CASE("a bandwidth is positive and finite, a latency not negative") {
  for (const double bad : {0.0, -5.0, std::nan(""), HUGE_VAL}) {
    CAPTURE(bad);
    Json json = sound();
    json["levels"][0]["bandwidth_bytes_per_second"] = bad;
    CHECK(problems_of(json).find("'levels[0].bandwidth_bytes_per_second' is") != std::string::npos);
  }
  Json json = sound();
  json["levels"][1]["latency_seconds"] = -1e-9;
  CHECK(problems_of(json) ==
        "toy.json: 'levels[1].latency_seconds' is -1e-09; allowed: a number from 0 to 3600");
  CHECK(problems_of_text("\"latency_seconds\": 1e-3", "\"latency_seconds\": 1e400")
            .find("out of range") != std::string::npos);
}

TEST_CASE("counts are whole, positive and few enough") {
  for (const char* bad : {"0", "-1", "3.7", "\"4\"", "null", "2147483648"}) {
    CAPTURE(bad);
    CHECK(problems_of_text("\"num_members\": 4", std::string("\"num_members\": ") + bad)
              .find("'levels[0].num_members' is") != std::string::npos);
  }
  CHECK(problems_of_text("\"num_members\": 4", "\"num_members\": 9223372036854775808")
            .find("does not fit 64 bits") != std::string::npos);
  CHECK(problems_of_text("\"num_members\": 4", "\"num_members\": 2147483647") ==
        "toy.json: 'levels' hold more than 2147483647 devices together");
}

TEST_CASE("a curve ascends, has no holes, and has a value for every point") {
  CHECK(problems_of_text("\"k\": [8, 16, 32]", "\"k\": [8, 32, 16]") ==
        "toy.json: 'compute.fp32.gemm_flops_per_second.k' does not ascend: 16 follows 32");
  CHECK(problems_of_text("\"k\": [8, 16, 32]", "\"k\": [8, 8, 32]").find("does not ascend") !=
        std::string::npos);
  CHECK(problems_of_text("[1, 2, 3, 4, 5, 6]", "[1, 2, null, 4, 5, 6]")
            .find("'compute.fp32.gemm_flops_per_second.values' has 1 hole (null), the first at "
                  "entry 2") != std::string::npos);
  CHECK(
      problems_of_text("[1, 2, 3, 4, 5, 6]", "[1, 2, 3, 4, 5]").find("has 5 values; allowed: 6") !=
      std::string::npos);
  CHECK(problems_of_text("[1, 2, 3, 4, 5, 6]", "[1, 2, 3, 4, 5, 0]").find("values[5]' is 0") !=
        std::string::npos);
  CHECK(problems_of_text("\"m\": [1, 2], ", "").find("gemm_flops_per_second.m' is missing") !=
        std::string::npos);
  CHECK(problems_of_text("\"m\": [1, 2]", "\"m\": []").find("has 0 points") != std::string::npos);
}

TEST_CASE("all problems of a file are reported together") {
  Json json = sound();
  json.erase("name");
  json["kind"] = "gpo";
  json["memory_bytes"] = -1;
  json["levels"][0]["bandwidth_bytes_per_second"] = 0;
  json["levels"][1]["name"] = "node";
  json["compute"]["fp32"]["peak_flops_per_second"] = "fast";
  json["numbers"]["optimizer_bytes_per_second"] = true;
  json["sources"]["memory_bytes"] = 3;
  json["colour"] = "red";
  try {
    parse_cluster(json, "toy.json");
    FAIL("no exception");
  } catch (const InvalidInput& e) {
    CHECK(e.problems().size() == 9);
    for (const std::string& line : e.problems()) CHECK(line.find("toy.json: '") == 0);
  }
}

TEST_CASE("wrong types and missing parts are named") {
  CHECK(problems_of(Json::array()).find("the document is of type array") != std::string::npos);
  CHECK(problems_of(Json(nullptr)).find("the document is null") != std::string::npos);
  Json json = sound();
  json["levels"] = Json::array();
  json["compute"] = Json::object();
  const std::string empty = problems_of(json);
  CHECK(empty.find("'levels' has 0 entries; allowed: 1 to 16") != std::string::npos);
  CHECK(empty.find("'compute' is empty") != std::string::npos);
  json = sound();
  json["levels"] = 3;
  json.erase("compute");
  const std::string wrong = problems_of(json);
  CHECK(wrong.find("'levels' is 3; allowed: an array") != std::string::npos);
  CHECK(wrong.find("'compute' is missing") != std::string::npos);
  json = sound();
  json["levels"][0] = 7;
  CHECK(problems_of(json).find("'levels[0]' is an integer; allowed: an object") !=
        std::string::npos);
  CHECK(problems_of_text("\"num_nics\": 2, ", "").find("is given without 'num_nics'") !=
        std::string::npos);
}

TEST_CASE("further constants keep to their unit, and a name without one is refused") {
  for (const auto& [name, value, allowed] :
       {std::tuple("all_to_all_bytes_per_second", 0.0, "a number from 1 to"),
        {"all_reduce_bytes_per_second", -5.0, "a number from 1 to"},
        {"all_to_all_latency_seconds", -1e-6, "a number from 0 to 3600"},
        {"message_gap_seconds", -1.0, "a number from 0 to 3600"},
        {"measured_over_priced.experts.forward", -2.0, "a number from 1e-06 to"},
        {"all_to_all_gbps", 400.0, "names that end in _per_second"},
        {"latency_us", 5.0, "names that end in _per_second"}}) {
    CAPTURE(name);
    Json json = sound();
    json["numbers"] = {{name, value}};
    const std::string line = problems_of(json);
    CHECK(line.find(std::string("'numbers.") + name + "'") != std::string::npos);
    CHECK(line.find(allowed) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
  Json json = sound();
  json["numbers"] = {{"message_gap_seconds", 0},
                     {"rank_scatter_ratio", 0},
                     {"task_scatter_ratio", 0},
                     {"measured_over_priced.gate.backward", 1.2}};
  CHECK(problems_of(json).empty());
}

TEST_CASE("a level's rates are positive, its latency is not negative, and keys carry their unit") {
  for (const auto& [key, value, allowed] :
       {std::tuple("bandwidth_bytes_per_second", Json(0), "a number from 1 to"),
        {"bandwidth_bytes_per_second", Json(-1), "a number from 1 to"},
        {"bandwidth_bytes_per_second", Json("400 Gbit/s"), "a number from 1 to"},
        {"latency_seconds", Json(-1e-9), "a number from 0 to"},
        {"latency_us", Json(5), "is not a known key"},
        {"bandwidth_gbps", Json(400), "is not a known key"}}) {
    CAPTURE(key);
    Json json = sound();
    json["levels"][0][key] = value;
    const std::string line = problems_of(json);
    CHECK(line.find(std::string("'levels[0].") + key + "'") != std::string::npos);
    CHECK(line.find(allowed) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
  CHECK(problems_of_text("\"latency_seconds\": 0}", "\"latency_seconds\": NaN}")
            .find("is not valid JSON") != std::string::npos);
  CHECK(problems_of_text("\"latency_seconds\": 0}", "\"latency_seconds\": 1e999}")
            .find("out of range") != std::string::npos);
}
