#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/import.h>
#include <piper/plan/plan.h>
#include <piper/plan/setting.h>
#include <piper/plan/space.h>

#include <algorithm>
#include <chrono>

namespace piper::plan {
namespace {

Request request(const char* model, const char* cluster, int64_t devices) {
  Request r;
  r.model = model::load_model(model);
  r.cluster = cluster::load_cluster(cluster);
  r.num_devices = devices;
  return r;
}

std::vector<std::pair<int64_t, int64_t>> paper_families(const char* model, int64_t devices) {
  Request r = request(model, "frontier", devices);
  r.paper_form = true;
  const Setting setting = make_setting(r);
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const Family& family : make_space(setting).families)
    found.emplace_back(family.pp, family.ep);
  return found;
}

const Rejected* find(const Plan& plan, const std::string& family) {
  for (const Rejected& r : plan.rejected)
    if (r.family == family) return &r;
  return nullptr;
}

// The strategy in one line, for goldens.
std::string line(const Planned& p) {
  const strategy::Strategy& s = p.strategy;
  return fmt::format("pp {} ep {} dp {} {}x{} {} {}", s.mesh.pp, s.mesh.ep, s.mesh.dp,
                     s.num_micro_batches, s.micro_batch_sequences, strategy::name(s.schedule),
                     strategy::name(s.recompute));
}

}  // namespace

TEST_CASE("the paper's form admits exactly the PP x EP that eq. 7-10 give (ERRATA Piper 12)") {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(paper_families("m10b-e256", 1024) == Pairs{{32, 32}});
  CHECK(paper_families("m10b-e128", 512) == Pairs{{16, 32}, {32, 16}});
  CHECK(paper_families("m10b-e16", 64) == Pairs{{4, 16}, {8, 8}, {16, 4}, {32, 2}});
}

TEST_CASE("large plans are plausible: they fit, 15 to 60 % MFU, and are found in seconds") {
  struct Case {
    const char* model;
    const char* cluster;
    int64_t devices;
  };
  for (const Case& c : {Case{"m10b-e128", "frontier", 512},
                        {"deepseek-v3", "dgx-h100", 2048},
                        {"mixtral-8x7b", "dgx-h100", 64}}) {
    CAPTURE(c.model);
    const auto start = std::chrono::steady_clock::now();
    const Plan plan = make_plan(request(c.model, c.cluster, c.devices));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    REQUIRE(!plan.strategies.empty());
    MESSAGE(c.model << ": " << line(plan.strategies.front()) << " MFU "
                    << plan.strategies.front().prediction.mfu << " step "
                    << plan.strategies.front().prediction.step_seconds << " s, peak "
                    << plan.strategies.front().prediction.peak_bytes / 1e9 << " GB, "
                    << plan.num_considered << " in " << seconds << " s");
    for (const Planned& p : plan.strategies) {
      CHECK(p.prediction.peak_bytes <= plan.memory_limit_bytes);
      CHECK(strategy::contradictions(p.strategy, model::load_model(c.model)).empty());
    }
    CHECK(plan.strategies.front().prediction.mfu > 0.15);
    CHECK(plan.strategies.front().prediction.mfu < 0.60);
  }
}

TEST_CASE("the answer is ordered by MFU and the same every time") {
  const Plan a = make_plan(request("mixtral-8x7b", "dgx-h100", 64));
  const Plan b = make_plan(request("mixtral-8x7b", "dgx-h100", 64));
  REQUIRE(a.strategies.size() == b.strategies.size());
  for (size_t i = 0; i < a.strategies.size(); ++i)
    CHECK(strategy::to_json(a.strategies[i].strategy) ==
          strategy::to_json(b.strategies[i].strategy));
  // Simulated ones come first, in order; then the others.
  for (size_t i = 1; i < a.strategies.size(); ++i)
    if (a.strategies[i].prediction.method == a.strategies[i - 1].prediction.method)
      CHECK(a.strategies[i].prediction.mfu <= a.strategies[i - 1].prediction.mfu);
}

TEST_CASE("every family is in the answer or rejected with its equation and a smallest change") {
  Request r = request("deepseek-v3", "dgx-h100", 512);
  const Plan plan = make_plan(r);
  for (const Rejected& rejected : plan.rejected) {
    CAPTURE(rejected.family);
    CHECK(!rejected.constraint.empty());
    CHECK(!rejected.equation.empty());
    CHECK(!rejected.smallest_change.empty());
  }
  CHECK(find(plan, "pp 64, 128, 256, 512") != nullptr);  // eq. 9: 61 layers
  CHECK(find(plan, "pp 64, 128, 256, 512")->equation == "eq. 9");
  const auto memory = std::ranges::find(plan.rejected, "eq. 11", &Rejected::equation);
  REQUIRE(memory != plan.rejected.end());
  CHECK(memory->smallest_change.find("more per device") != std::string::npos);
}

TEST_CASE("an answer is never empty: the nearest, what it lacks, and how many devices would do") {
  const Plan plan = make_plan(request("deepseek-v3", "dgx-h100", 8));
  CHECK(plan.strategies.empty());
  REQUIRE(plan.nearest);
  CHECK(plan.nearest->prediction.peak_bytes > plan.memory_limit_bytes);
  REQUIRE(!plan.rejected.empty());
  CHECK(plan.rejected.front().family == "all on 8 devices");
  const std::string& change = plan.rejected.front().smallest_change;
  CAPTURE(change);
  CHECK(change.find(" more per device, or ") != std::string::npos);
  // What it names does fit, and one node less does not.
  const size_t at = change.find("or ") + 3;
  const int64_t devices = std::stoll(change.substr(at));
  CHECK(!make_plan(request("deepseek-v3", "dgx-h100", devices)).strategies.empty());
  CHECK(make_plan(request("deepseek-v3", "dgx-h100", devices - 8)).strategies.empty());
}

TEST_CASE("a batch that no depth divides gives the nearest that does") {
  Request r = request("mixtral-8x7b", "dgx-h100", 56);
  r.global_batch_sequences = 3;
  const Plan plan = make_plan(r);
  CHECK(plan.strategies.empty());
  REQUIRE(plan.nearest);
  CHECK(plan.nearest->strategy.global_batch_sequences ==
        4);  // pp 28 x dp 2: dp 2 and dp 4 divide 4
  REQUIRE(!plan.rejected.empty());
}

TEST_CASE("fixed axes are kept, and free ones searched") {
  Request r = request("mixtral-8x7b", "dgx-h100", 64);
  r.fixed = {.pp = 2,
             .ep = 8,
             .micro_batch_sequences = 1,
             .schedule = strategy::PipelineSchedule::kGPipe,
             .recompute = strategy::Recompute::kFull};
  const Plan plan = make_plan(r);
  const std::vector<Planned> all = plan.nearest ? std::vector{*plan.nearest} : plan.strategies;
  REQUIRE(!all.empty());
  for (const Planned& p : all) {
    CHECK(p.strategy.mesh == strategy::Mesh{.pp = 2, .ep = 8, .dp = 32});
    CHECK(p.strategy.micro_batch_sequences == 1);
    CHECK(p.strategy.schedule == strategy::PipelineSchedule::kGPipe);
    CHECK(p.strategy.recompute == strategy::Recompute::kFull);
  }
}

TEST_CASE("what cannot be is refused with the nearest that can") {
  Request r = request("deepseek-v3", "dgx-h100", 96);
  r.fixed.ep = 24;
  CHECK_THROWS_WITH_AS(make_plan(r), "--ep 24 does not divide 256 experts; 16 and 32 do (eq. 8)",
                       InvalidInput);
  r.fixed = {.pp = 5};
  CHECK_THROWS_WITH_AS(make_plan(r), "--pp 5 does not divide 96 devices; 4 and 6 do", InvalidInput);
  r.fixed = {.pp = 2, .dp = 2};
  CHECK_THROWS_WITH_AS(make_plan(r), "--pp 2 x --dp 2 is 4 ranks, --devices is 96; allowed: equal",
                       InvalidInput);
  r.fixed = {.pp = 96};
  CHECK_THROWS_WITH_AS(
      make_plan(r),
      "--pp 96 is more than the 61 layers of deepseek-v3; allowed: at most 48 (eq. 9)",
      InvalidInput);
  r.fixed = {};
  r.num_devices = int64_t{1} << 20;
  CHECK_THROWS_AS(make_plan(r), InvalidInput);
}

TEST_CASE("defaults are stated") {
  Request r = request("mixtral-8x7b", "dgx-h100", 64);
  const Plan plan = make_plan(r);
  REQUIRE(plan.defaults.size() == 3);
  CHECK(plan.defaults[0].name == "sequence");
  CHECK(plan.defaults[0].value == "4096");
  CHECK(plan.defaults[1].name == "global_batch");
  CHECK(plan.defaults[1].value == "1024");
  CHECK(plan.defaults[2].value == "bf16");
  r.sequence = 2048;
  r.global_batch_sequences = 128;
  r.precision = strategy::Precision::kBf16;
  CHECK(make_plan(r).defaults.empty());
}

}  // namespace piper::plan
