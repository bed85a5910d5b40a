#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>

using namespace piper;
using namespace piper::cluster;

namespace {

const char* const kSoundCurve = R"({
  "name": "toy", "device": "D", "kind": "cpu", "memory_bytes": 1000, "memory_bytes_per_second": 100,
  "levels": [{"name": "node", "num_members": 4, "bandwidth_bytes_per_second": 50, "latency_seconds": 0}],
  "compute": {"fp32": {"peak_flops_per_second": 1e9}},
  "curves": [
    {"name": "all-to-all", "unit": "bytes", "axes": ["ranks", "bytes"],
     "points": {"ranks": [4, 4], "bytes": [256, 512], "amount": [192, 384], "seconds": [1e-5, 2e-5],
                "seconds_low": [9e-6, 1e-5], "seconds_high": [1e-5, 3e-5], "seconds_worst": [4e-4, 3e-5],
                "num_samples": [30, 31], "num_outliers": [2, 0]},
     "fit": {"latency_seconds": 1e-6, "bandwidth_bytes_per_second": 2e7, "r_squared": 0.98,
             "median_residual": 0.1, "worst_residual": 0.2, "residuals": [0.1, -0.2]}}]
})";

std::string problems_of_curve(const std::string& from, const std::string& to) {
  std::string text = kSoundCurve;
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

TEST_CASE("curves are read with their points, timings and fit, and written as they were read") {
  const Cluster c = parse_cluster(parse_json(kSoundCurve, "toy.json"), "toy.json");
  REQUIRE(c.curves.size() == 1);
  const Curve& curve = c.curves[0];
  CHECK(curve.axes == std::vector<std::string>{"ranks", "bytes"});
  REQUIRE(curve.points.size() == 2);
  CHECK(curve.points[1].at == std::vector<double>{4, 512});
  CHECK(curve.points[0].timing.num_outliers == 2);
  CHECK(curve.points[0].timing.worst_seconds == 4e-4);
  CHECK(curve.points[1].rate() == doctest::Approx(384 / 2e-5));
  REQUIRE(curve.fit.has_value());
  CHECK(curve.fit->residuals == std::vector<double>{0.1, -0.2});
  const Json written = to_json(c);
  CHECK(to_json(parse_cluster(written, "again")) == written);
  CHECK(written["curves"] == parse_json(kSoundCurve, "toy.json")["curves"]);
}

TEST_CASE("a hole in a curve is refused in one line that says where") {
  CHECK(problems_of_curve("\"seconds\": [1e-5, 2e-5]", "\"seconds\": [null, 2e-5]") ==
        "toy.json: 'curves[0].points.seconds' has 1 hole (null), the first at entry 0; allowed: a "
        "number for "
        "every point");
  CHECK(problems_of_curve("\"num_samples\": [30, 31]", "\"num_samples\": [null, null]") ==
        "toy.json: 'curves[0].points.num_samples' has 2 holes (null), the first at entry 0; "
        "allowed: a number "
        "for every point");
  CHECK(problems_of_curve("1e9}", R"(1e9, "gemm_flops_per_second": {"m": [1, 2], "n": [4], "k": [8],
        "values": [7, null]}})") ==
        "toy.json: 'compute.fp32.gemm_flops_per_second.values' has 1 hole (null), the first at "
        "entry 1; "
        "allowed: a number for every point");
}

TEST_CASE("bad curves are refused by name") {
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(problems_of_curve("[192, 384]", "[192]"),
      "'curves[0].points.amount' has 1 entries; allowed: 2, as 'ranks' has");
  has(problems_of_curve("\"bytes\", \"axes\"", "\"byte\", \"axes\""),
      "'curves[0].unit' is 'byte'; allowed: flops, bytes, tokens");
  has(problems_of_curve("[\"ranks\", \"bytes\"]", "[\"ranks\", \"seconds\"]"),
      "'curves[0].axes' holds \"seconds\"");
  has(problems_of_curve("[\"ranks\", \"bytes\"]", "[]"), "'curves[0].axes' has 0 names");
  has(problems_of_curve("[0.1, -0.2]", "[0.1]"),
      "'curves[0].fit.residuals' has 1 entries; allowed: 2");
  has(problems_of_curve("\"seconds\": [1e-5", "\"seconds\": [0"),
      "'curves[0].points.seconds[0]' is 0");
  has(problems_of_curve("\"seconds_low\": [9e-6, 1e-5],", ""),
      "'curves[0].points.seconds_low' is missing");
  has(problems_of_curve("\"num_samples\"", "\"num_sample\""), "is not a known key");
}
