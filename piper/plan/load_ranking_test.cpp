#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/model/import.h>
#include <piper/plan/plan.h>

#include <algorithm>

namespace piper::plan {
namespace {

Request request(const char* model, const char* cluster, int64_t devices, const char* load) {
  Request r;
  r.model = model::load_model(model);
  r.cluster = cluster::load_cluster(cluster);
  r.num_devices = devices;
  r.num_simulated = 0;
  if (load != nullptr) r.load = cost::parse_load(load);
  r.num_load_samples = 6;
  return r;
}

}  // namespace

TEST_CASE("under a load the answer is ordered by the statistic asked for, and fits by it") {
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst}) {
    Request r = request("mixtral-8x7b", "dgx-h100", 64, "zipf:0.4");
    r.load_statistic = statistic;
    const Plan plan = make_plan(r);
    REQUIRE(plan.strategies.size() > 4);
    CHECK(plan.num_repriced >= static_cast<int64_t>(plan.strategies.size()));
    double before = 0;
    for (const Planned& p : plan.strategies) {
      REQUIRE(p.under_load.has_value());
      const double seconds = cost::value(p.under_load->seconds, statistic);
      CHECK(seconds >= before);
      before = seconds;
      CHECK(cost::value(p.under_load->peak_bytes, statistic) <=
            static_cast<double>(plan.memory_limit_bytes));
      CHECK(p.under_load->seconds.mean <= p.under_load->seconds.worst * (1 + 1e-12));
      CHECK(p.strategy.predicted->at("under_load").at("step_seconds").at("p95") ==
            p.under_load->seconds.p95);
    }
  }
}

TEST_CASE(
    "a balanced load ranks as none does; a skewed one asks for fewer ranks to share experts") {
  const Plan none = make_plan(request("mixtral-8x7b", "dgx-h100", 64, nullptr));
  const Plan uniform = make_plan(request("mixtral-8x7b", "dgx-h100", 64, "uniform"));
  CHECK(uniform.strategies.front().strategy.mesh == none.strategies.front().strategy.mesh);
  CHECK(uniform.strategies.front().under_load->seconds.worst ==
        doctest::Approx(none.strategies.front().prediction.step_seconds));
  const Plan skewed = make_plan(request("mixtral-8x7b", "dgx-h100", 64, "hot-expert:3"));
  CHECK(skewed.strategies.front().strategy.mesh.ep < none.strategies.front().strategy.mesh.ep);
  // What the balanced plan chose is priced under the load too, and does worse.
  CHECK(skewed.strategies.front().under_load->seconds.p95 >
        none.strategies.front().prediction.step_seconds);
}

TEST_CASE("what fits only while the load is balanced is left out, and the answer says so") {
  const Plan plan = make_plan(request("deepseek-v3", "dgx-h100", 256, "zipf:1.5"));
  const auto why = std::ranges::find_if(
      plan.rejected, [](const Rejected& r) { return r.family == "under load zipf:1.5"; });
  REQUIRE(why != plan.rejected.end());
  CHECK(why->num_strategies > 0);
  CHECK(why->constraint.find("p95 of memory") == 0);
  CHECK((plan.nearest.has_value() == plan.strategies.empty()));
}

TEST_CASE("the same request gives the same answer") {
  const Plan a = make_plan(request("mixtral-8x7b", "dgx-h100", 64, "drift:0.5"));
  const Plan b = make_plan(request("mixtral-8x7b", "dgx-h100", 64, "drift:0.5"));
  REQUIRE(a.strategies.size() == b.strategies.size());
  for (size_t i = 0; i < a.strategies.size(); ++i)
    CHECK(strategy::to_json(a.strategies[i].strategy) ==
          strategy::to_json(b.strategies[i].strategy));
}

}  // namespace piper::plan
