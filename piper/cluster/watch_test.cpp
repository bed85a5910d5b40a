#include <doctest/doctest.h>
#include <piper/cluster/cluster.h>

using namespace piper::cluster;

namespace {

Cluster machine() {
  Cluster c;
  c.compute["fp32"].gemm = {{"m", "n", "k"}, {{8, 64}, {32, 128}, {32}}, {1, 2, 3, 4}};
  c.element_wise = {{"bytes"}, {{1e3, 1e6}}, {9, 5}};    // still falling at its end
  c.copy = {{"bytes"}, {{1e3, 1e5, 1e6}}, {9, 5.2, 5}};  // flat at its end
  Curve link{.name = "all-to-all", .unit = "bytes", .axes = {"bytes"}};
  for (const double bytes : {256.0, 4096.0})
    link.points.push_back({{bytes}, bytes, {1, 1, 1, 1, 1}});
  link.fit = Fit{.residuals = {0, 0}};
  c.curves = {link};
  return c;
}

}  // namespace

TEST_CASE(
    "what a watched curve is asked outside of its points is noted by axis, with the extremes") {
  const auto watch = std::make_shared<Watch>();
  const Cluster c = watched(machine(), watch);
  const Grid& gemm = c.compute.at("fp32").gemm;
  CHECK(gemm.at({8, 32, 32}) == 1);
  CHECK(gemm.at({64, 128, 32}) == doctest::Approx(4));
  CHECK(watch->outside().empty());
  gemm.at({128, 64, 32});
  gemm.at({4, 64, 16});
  gemm.at({512, 64, 32});
  REQUIRE(watch->outside().size() == 2);
  const Outside& m = watch->outside()[0];
  CHECK(m.curve == "compute.fp32.gemm");
  CHECK(m.axis == "m");
  CHECK(m.asked_low == 4);
  CHECK(m.asked_high == 512);
  CHECK(m.measured_low == 8);
  CHECK(m.measured_high == 64);
  CHECK(watch->outside()[1].axis == "k");
  CHECK(to_text(watch->outside()) ==
        "compute.fp32.gemm: m 4 to 512 (measured 8 to 64); compute.fp32.gemm: k 16 (measured 32 to "
        "32)");
}

TEST_CASE(
    "a curve over bytes that ends in a plateau is known beyond it, one that still falls is not") {
  const auto watch = std::make_shared<Watch>();
  const Cluster c = watched(machine(), watch);
  c.copy.at({1e9});
  CHECK(watch->outside().empty());
  c.copy.at({10});  // below the first point, which takes long enough to matter, nothing is known
  c.element_wise.at({1e9});
  REQUIRE(watch->outside().size() == 2);
  CHECK(watch->outside()[0].curve == "copy");
  CHECK(watch->outside()[1].curve == "element_wise");
}

TEST_CASE("links are watched where the points of their fit are known") {
  const auto watch = std::make_shared<Watch>();
  const Cluster c = watched(machine(), watch);
  c.watch->note_link("all-to-all", 1000);
  c.watch->note_link("point-to-point", 1e12);
  CHECK(watch->outside().empty());
  c.watch->note_link("all-to-all", 1e7);
  REQUIRE(watch->outside().size() == 1);
  CHECK(watch->outside()[0].measured_high == 4096);
  c.watch->note_link("all-to-all", 8);  // the fit has no latency: 8 bytes are not known
  CHECK(watch->outside()[0].asked_low == 8);
  Cluster slow = machine();
  slow.curves[0].fit->line = {.latency_seconds = 1e-5,
                              .bytes_per_second = 1e10};  // 256 bytes: 0.3 % of it
  const auto other = std::make_shared<Watch>();
  watched(slow, other).watch->note_link("all-to-all", 8);
  CHECK(other->outside().empty());
}

TEST_CASE("the original of a watched cluster notes nothing and prices the same") {
  const Cluster original = machine();
  const auto watch = std::make_shared<Watch>();
  const Cluster copy = watched(original, watch);
  CHECK(original.element_wise.at({1e9}) == copy.element_wise.at({1e9}));
  CHECK(watch->outside().size() == 1);
  original.element_wise.at({1e12});
  CHECK(watch->outside()[0].asked_high == 1e9);
}
