#include <doctest/doctest.h>
#include <piper/model/count.h>
#include <piper/plan/roofline.h>
#include <testing/plan/example_world.h>

#include <algorithm>

using namespace piper;
using namespace piper::plan;

namespace {

struct AskedRoofline : ExampleWorld {
  using ExampleWorld::ExampleWorld;
  Request request() const { return ExampleWorld::request(8, 64); }
};

strategy::Strategy on_one_rank(const Request& r, int64_t sequences) {
  strategy::Strategy s;
  s.sequence = r.sequence;
  s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  s.precision = r.precision;
  return s;
}

double total_flops(const Roofline& roofline) {
  double flops = 0;
  for (const RooflinePoint& p : roofline.points)
    flops += p.flops * static_cast<double>(std::max<int64_t>(p.num_layers, 1));
  return flops;
}

const RooflinePoint& part(const Roofline& roofline, const char* name) {
  for (const RooflinePoint& p : roofline.points)
    if (p.part == name) return p;
  FAIL("no part " << name);
  return roofline.points.front();
}

}  // namespace

TEST_CASE(
    "the parts of all layers and the head add up to the forward of the model, router left out") {
  for (const char* name :
       {"mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "arctic"}) {
    CAPTURE(name);
    const AskedRoofline q(name);
    const Request r = q.request();
    const model::TokenFlops token = model::token_flops(q.model, r.sequence);
    const double expected = (token.forward() - token.router - token.mtp) * 2 * 4096;
    CHECK(total_flops(make_roofline(r, on_one_rank(r, 2))) ==
          doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("a product's intensity by hand: the head of Mixtral") {
  const AskedRoofline q("mixtral-8x7b");
  const Request r = q.request();
  const Roofline roofline = make_roofline(r, on_one_rank(r, 1));
  const double t = 4096, v = 32000, h = 4096;
  const RooflinePoint& head = part(roofline, "head");
  CHECK(head.flops == doctest::Approx(2 * t * v * h));
  CHECK(head.bytes == doctest::Approx(2 * (t * h + v * h + t * v)));
  CHECK(roofline.attainable_flops_per_second(head) == roofline.peak_flops_per_second);
}

TEST_CASE(
    "experts spread over more ranks hold fewer weights for the same rows, so their intensity "
    "rises") {
  const AskedRoofline q("deepseek-v3");
  const Request r = q.request();
  strategy::Strategy s = on_one_rank(r, 1);
  double last = 0;
  for (const int64_t ep : {1, 8, 64}) {
    s.mesh.ep = s.mesh.dp = ep;
    const double intensity = part(make_roofline(r, s), "routed experts").intensity();
    CHECK(intensity > last);
    last = intensity;
  }
}

TEST_CASE("nothing is predicted above its roof by more than the measured curves are off") {
  const AskedRoofline q("deepseek-v3");
  const Request r = q.request();
  const Roofline roofline = make_roofline(r, on_one_rank(r, 1));
  for (const RooflinePoint& p : roofline.points) {
    CAPTURE(p.part);
    CHECK(p.predicted_flops_per_second > 0);
    CHECK(p.predicted_flops_per_second <= p.peak_flops_per_second);
    CHECK(roofline.is_memory_bound(p) == (p.intensity() < roofline.ridge()));
  }
}
