#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/import.h>
#include <piper/plan/excluded.h>
#include <piper/plan/question.h>
#include <piper/plan/shapes.h>
#include <piper/strategy/runnable.h>
#include <tests/switches.h>

#include <algorithm>

namespace piper::plan {
namespace {

Question question(const char* model, const char* cluster, int64_t devices) {
  return {.model = model::load_model(model),
          .cluster = cluster::load_cluster(cluster),
          .num_devices = devices};
}

// A question with what its request refers to.
struct Asked {
  explicit Asked(Question q) : question(std::move(q)) {}
  Request request() { return resolve_defaults(question, trainer, defaults); }
  Plan plan() { return search(request()); }
  std::string refusal() {
    try {
      plan();
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  }
  Question question;
  cost::TrainerProfile trainer = cost::load_trainer("piper");
  std::vector<Default> defaults;
};

std::vector<std::pair<int64_t, int64_t>> paper_shapes(const char* model, int64_t devices) {
  Asked asked(question(model, "frontier", devices));
  asked.question.fixed.runnable = asked.question.fixed.paper_form = true;
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const Shape& shape : shapes_of(asked.request())) found.emplace_back(shape.pp, shape.ep);
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace

TEST_CASE("the paper's form admits exactly the PP x EP that eq. 7-10 give (ERRATA Piper 12)") {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(paper_shapes("m10b-e256", 1024) == Pairs{{32, 32}});
  CHECK(paper_shapes("m10b-e128", 512) == Pairs{{16, 32}, {32, 16}});
  CHECK(paper_shapes("m10b-e16", 64) == Pairs{{4, 16}, {8, 8}, {16, 4}, {32, 2}});
  // 61 layers is a prime number: eq. 9 asks for no equal stages.
  CHECK(paper_shapes("deepseek-v3", 512) == Pairs{{16, 32}, {32, 16}});
}

TEST_CASE(
    "the paper's form plans a model whose layers no depth divides, and says what it excludes") {
  Asked asked(question("deepseek-v3", "frontier", 512));
  asked.question.fixed.runnable = asked.question.fixed.paper_form = true;
  const Request request = asked.request();
  const Plan plan = search(request);
  REQUIRE_FALSE(plan.ranked.empty());
  for (const Candidate& c : plan.ranked)
    CHECK(c.strategy.layers_per_stage ==
          strategy::even_split(61, c.strategy.mesh.num_virtual_stages()));
  for (const Excluded& one : excluded_degrees(request))
    CHECK_MESSAGE(one.constraint.find("does not divide 61 layers") == std::string::npos,
                  one.constraint);
}

TEST_CASE("what this Piper trains is a subset of the whole, and never beats it") {
  for (const auto& [model, cluster, devices] : {std::tuple{"mixtral-8x7b", "dgx-h100", 64},
                                                {"qwen3-30b-a3b", "h800", 128},
                                                {"m10b-e16", "frontier", 64}}) {
    CAPTURE(model);
    Asked asked(question(model, cluster, testing::full_counts() ? devices : devices / 4));
    if (!testing::full_counts()) asked.question.fixed.micro_batch_sequences = 1;
    const Plan whole = asked.plan();
    asked.question.fixed.runnable = true;
    const Request request = asked.request();
    const Plan part = search(request);
    REQUIRE(!part.ranked.empty());
    const std::unique_ptr<cost::Estimator> estimator = request.estimator();
    CHECK(part.num_shapes < whole.num_shapes);
    CHECK(whole.ranked.front().estimate.seconds <= part.ranked.front().estimate.seconds);
    for (const Candidate& c : part.ranked) {
      CHECK(strategy::not_runnable(c.strategy).empty());
      CHECK(strategy::contradictions(c.strategy, asked.question.model).empty());
      // The same strategy has the same price in both.
      const double imbalance = request.imbalance_at(c.strategy.mesh.ep);
      CHECK(estimator->estimate(c.strategy, imbalance).seconds == c.estimate.seconds);
    }
  }
}

TEST_CASE("degrees that nothing has are listed with their equation and a smallest change") {
  Asked asked(question("deepseek-v3", "dgx-h100", 512));
  const std::vector<Excluded> excluded = excluded_degrees(asked.request());
  for (const Excluded& e : excluded) {
    CAPTURE(e.degrees);
    CHECK(!e.constraint.empty());
    CHECK(e.equation.find("eq. ") == 0);
    CHECK(!e.smallest_change.empty());
  }
  const auto deep = std::ranges::find(excluded, "pp 64, 128, 256, 512", &Excluded::degrees);
  REQUIRE(deep != excluded.end());  // 61 layers
  CHECK(deep->equation == "eq. 9");
  CHECK(deep->smallest_change == "pp 32");
}

TEST_CASE("an answer is never empty: what lacks least, family by family") {
  Asked asked(question("deepseek-v3", "dgx-h100", 8));
  asked.question.fixed.runnable = true;
  const Request request = asked.request();
  const Plan plan = search(request);
  CHECK(plan.ranked.empty());
  const auto has_smallest = [](const FamilyBest& f) { return f.smallest.has_value(); };
  CHECK(std::ranges::any_of(plan.families, has_smallest));
  for (const FamilyBest& f : plan.families)
    if (f.smallest) CHECK(f.smallest->estimate.peak_bytes > request.memory_limit_bytes);
}

TEST_CASE("fixed axes are kept, and free ones searched") {
  Asked asked(question("mixtral-8x7b", "dgx-h100", 64));
  asked.question.fixed = {.pp = 2,
                          .ep = 8,
                          .etp = 1,
                          .tp = 1,
                          .cp = 1,
                          .micro_batch_sequences = 1,
                          .schedule = strategy::PipelineSchedule::kGPipe,
                          .recompute = strategy::Recompute::kFull,
                          .runnable = true};
  const Plan plan = asked.plan();
  std::vector<Candidate> all = plan.ranked;
  for (const FamilyBest& f : plan.families)
    if (f.smallest) all.push_back(*f.smallest);
  REQUIRE(!all.empty());
  for (const Candidate& c : all) {
    CHECK(c.strategy.mesh == strategy::Mesh{.pp = 2, .ep = 8, .dp = 32});
    CHECK(c.strategy.micro_batch_sequences == 1);
    CHECK(c.strategy.schedule == strategy::PipelineSchedule::kGPipe);
    CHECK(c.strategy.recompute == strategy::Recompute::kFull);
  }
}

TEST_CASE("what cannot be is refused with the nearest that can") {
  Asked asked(question("deepseek-v3", "dgx-h100", 96));
  FixedAxes& fixed = asked.question.fixed;
  const auto has = [&](const char* part) {
    const std::string refusal = asked.refusal();
    CAPTURE(refusal);
    CHECK(refusal.find(part) != std::string::npos);
  };
  for (const bool runnable : {false, true}) {
    fixed = {.ep = 24, .runnable = runnable};
    has("allowed: --ep 16 or 32");
    fixed = {.pp = 5, .runnable = runnable};
    has("allowed: --pp 4 or 6");
    fixed = {.pp = 96, .runnable = runnable};
    has("allowed: --pp 48");
  }
  fixed = {.ep = 16, .cp = 2, .micro_batch_sequences = 1, .runnable = true};
  CHECK(asked.refusal().empty());  // it runs
  fixed = {.context_exchange = strategy::ContextExchange::kGather};
  has("--context-exchange is gather: it has a price on machines that piper profile has measured");
  fixed = {.reduction_start = strategy::ReductionStart::kEnd};
  has("--reduction-start is end: it has a price on machines that piper profile has measured");
  fixed = {.runnable = true};
  asked.question.precision = strategy::Precision::kFp8;
  has("--precision is fp8: this Piper trains in fp32, bf16 and fp64");
  asked.question.precision = {};
  asked.question.num_devices = 0;
  has("--devices is missing: dgx-h100 has 16384, and more than 1024 are not taken unasked");
  asked.question.num_devices = int64_t{1} << 20;
  has("--devices is 1048576; allowed: 1 to");
  asked.question.model = model::load_model("mixtral-8x7b");
  asked.question.num_devices = 8 * 37;
  asked.question.global_batch_sequences = 3;  // 37 divides neither heads, layers nor the batch
  has("296 devices with 3 sequences a step");
}

TEST_CASE("defaults are stated") {
  Asked asked(question("mixtral-8x7b", "dgx-h100", 64));
  asked.request();
  const Request defaulted = asked.request();
  REQUIRE(asked.defaults.size() == 4);
  CHECK(asked.defaults[3].name == "load");
  CHECK(asked.defaults[3].value == "zipf:0.1");
  // With 8 experts on 8 ranks the busiest is expected to have 1.14 times the mean.
  CHECK(defaulted.imbalance_at(8) == doctest::Approx(1.14).epsilon(0.02));
  CHECK(defaulted.imbalance_at(1) == 1);
  CHECK(asked.defaults[0].name == "sequence");
  CHECK(asked.defaults[0].value == "4096");
  CHECK(asked.defaults[1].name == "global_batch");
  CHECK(asked.defaults[1].value == "1024");
  CHECK(asked.defaults[2].value == "bf16");
  asked.question.sequence = 2048;
  asked.question.global_batch_sequences = 128;
  asked.question.precision = strategy::Precision::kBf16;
  asked.question.load = cost::LoadSamples{};  // balanced
  CHECK(asked.request().imbalance_at(8) == 1);
  CHECK(asked.defaults.empty());
  // A batch that the fixed axes multiply to, and devices that they do.
  asked.question.global_batch_sequences = asked.question.num_devices = 0;
  asked.question.fixed = {
      .pp = 4, .tp = 2, .dp = 8, .micro_batch_sequences = 1, .num_micro_batches = 16};
  const Request request = asked.request();
  CHECK(request.num_devices == 64);
  CHECK(request.global_batch_sequences == 128);
  CHECK(asked.defaults.size() == 2);
}

}  // namespace piper::plan
