#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/random.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace piper::cost {
namespace {

model::Model of_experts(int64_t layers, int64_t experts) {
  model::Model model = example::mixture(layers);
  for (model::Layer& layer : model.layers) layer.feed_forward.num_experts = experts;
  return model;
}

ExpertLoad sample(const std::string& text, const model::Model& model, int64_t ep, uint64_t seed,
                  int64_t index) {
  return sample_load(parse_load(text), model, ep, seed, index, 8);
}

double largest(const std::vector<double>& share) { return *std::ranges::max_element(share); }

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "every sample of every load sums to one in each mixture layer, and is drawn alike twice") {
  model::Model model = of_experts(5, 16);
  model.layers[1].feed_forward = {.ffn = 64};
  for (const char* text : {"zipf:1.2", "zipf:0", "hot-expert:8", "hot-rank:3.5", "drift:0.7"})
    for (const uint64_t seed : {1u, 2u})
      for (int64_t index = 0; index < 8; ++index) {
        CAPTURE(text);
        const ExpertLoad load = sample(text, model, 4, seed, index);
        CHECK(load.share == sample(text, model, 4, seed, index).share);
        REQUIRE(load.share.size() == 5);
        CHECK(load.share[1].empty());
        for (const size_t layer : {0, 2, 3, 4}) {
          CHECK(std::accumulate(load.share[layer].begin(), load.share[layer].end(), 0.0) ==
                near(1));
          CHECK(*std::ranges::min_element(load.share[layer]) >= 0);
        }
      }
  CHECK(sample("uniform", model, 4, 1, 0).share.empty());
}

TEST_CASE("zipf:1 of four experts: 12, 6, 4, 3 twenty-fifths, in an order that differs by layer") {
  const model::Model model = of_experts(20, 4);
  const ExpertLoad load = sample("zipf:1", model, 2, 3, 0);
  int64_t first_is_hot = 0;
  for (std::vector<double> share : load.share) {
    first_is_hot += share[0] == largest(share);
    std::ranges::sort(share, std::greater<>());
    CHECK(share[0] == near(12.0 / 25));
    CHECK(share[3] == near(3.0 / 25));
  }
  CHECK(first_is_hot > 0);
  CHECK(first_is_hot < 20);
}

TEST_CASE("a hot expert has its factor, and so have all experts of a hot rank, in every layer") {
  const model::Model model = of_experts(3, 16);
  for (const std::vector<double>& share : sample("hot-expert:8", model, 4, 5, 2).share)
    CHECK(largest(share) == near(0.5));
  const ExpertLoad load = sample("hot-rank:3", model, 4, 5, 2);
  for (const std::vector<double>& share : load.share) {
    CHECK(share == load.share.front());
    CHECK(std::ranges::count(share, largest(share)) == 4);
    CHECK(largest(share) == near(3.0 / 16));
  }
  CHECK(sample("hot-rank:3", model, 1, 5, 2).share.empty());
}

TEST_CASE("drift: neighbouring steps are alike, distant ones are not") {
  const model::Model model = of_experts(1, 4096);
  const auto logs = [&](int64_t index) {
    std::vector<double> x = sample("drift:1", model, 4, 9, index).share[0];
    for (double& value : x) value = std::log(value);
    return x;
  };
  const auto correlation = [](std::vector<double> a, std::vector<double> b) {
    double ab = 0, aa = 0, bb = 0;
    for (auto* list : {&a, &b}) {
      const double mean = std::accumulate(list->begin(), list->end(), 0.0) / 4096;
      for (double& value : *list) value -= mean;
    }
    for (size_t i = 0; i < a.size(); ++i) {
      ab += a[i] * b[i];
      aa += a[i] * a[i];
      bb += b[i] * b[i];
    }
    return ab / std::sqrt(aa * bb);
  };
  CHECK(correlation(logs(3), logs(4)) == doctest::Approx(0.9).epsilon(0.03));
  CHECK(correlation(logs(0), logs(7)) == doctest::Approx(std::pow(0.9, 7)).epsilon(0.1));
}

TEST_CASE("the normal numbers have mean 0 and deviation 1") {
  Random random({11});
  double sum = 0, squares = 0;
  constexpr int kMany = 100'000;
  for (int i = 0; i < kMany; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / kMany) < 0.02);
  CHECK(squares / kMany == doctest::Approx(1).epsilon(0.02));
}

TEST_CASE("a trace, as CSV or JSON, is read into shares; samples lie over its steps") {
  const auto csv = parse_load_trace("iter,layer,e0,e1\n7,0,1,3\n7,1,2,2\n9,1,4,0\n9,0,0,5\n", "t");
  CHECK(csv == parse_load_trace(R"({"steps": [[[1, 3], [2, 2]], [[0, 5], [4, 0]]]})", "t"));
  REQUIRE(csv.size() == 2);
  CHECK(csv[0][0] == std::vector<double>{0.25, 0.75});
  CHECK(csv[1][1] == std::vector<double>{1, 0});
  LoadDistribution load{.kind = LoadKind::kTrace, .trace = csv};
  const model::Model model = of_experts(3, 2);
  CHECK(sample_load(load, model, 1, 0, 0, 3).share[0] == csv[0][0]);
  CHECK(sample_load(load, model, 1, 0, 2, 3).share[1] == csv[1][1]);
  CHECK(sample_load(load, model, 1, 0, 2, 3).share[2] == csv[1][0]);  // layers begin again
}

TEST_CASE("the counts of a trace's ranks are summed, its columns in any order") {
  const auto sum = parse_load_trace("iter,layer,e0,e1\n1,0,4,4\n1,1,1,3\n", "t");
  CHECK(parse_load_trace("iter,rank,layer,e0,e1\n1,0,0,1,3\n1,1,0,3,1\n\n1,0,1,0,3\n1,7,1,1,0\n",
                         "t") == sum);
  CHECK(parse_load_trace("rank,layer,iter,e0,e1\n0,0,1,4,4\n0,1,1,1,3\n", "t") == sum);
  CHECK(refused([] {
          parse_load_trace("iter,rank,layer,e0\n1,0,0,1\n\n1,0,0,1\n", "t");
        }).find("t: line 4: step 1, layer 0, rank 0 appears twice") == 0);
}

TEST_CASE("counts by text are steps, without those of one expert a token") {
  const auto trace = parse_load_trace(
      R"({"note": "n", "data": {"a/c": [[1, 3]], "a/c_top1": [[9, 0]], "b": [[1, 1, 1, 1]]}})",
      "t");
  REQUIRE(trace.size() == 2);
  const LoadDistribution load{.kind = LoadKind::kTrace, .trace = trace};
  // The steps of as many experts as the model's.
  for (const int64_t index : {0, 3}) {
    CHECK(sample_load(load, of_experts(2, 2), 1, 0, index, 4).share[1] ==
          std::vector<double>{0.25, 0.75});
    CHECK(sample_load(load, of_experts(2, 4), 1, 0, index, 4).share[0] ==
          std::vector<double>(4, 0.25));
  }
  CHECK(parse_load_trace(R"({"data": {"a_top1": [[1, 3]]}})", "t").size() == 1);
}

TEST_CASE("a trace of other experts lends its distribution: quantiles of its shares") {
  const LoadDistribution load{.kind = LoadKind::kTrace,
                              .trace = parse_load_trace("iter,layer,e0,e1\n1,0,2,6\n", "t")};
  CHECK(stretch_of(load, of_experts(1, 4)) == "2 experts of the trace stretched over 4");
  CHECK(stretch_of(load, of_experts(1, 2)).empty());
  CHECK(stretch_of(load, of_experts(1, 1)) == "2 experts of the trace drawn together to 1");
  std::vector<double> share = sample_load(load, of_experts(1, 4), 1, 0, 0, 1).share[0];
  std::ranges::sort(share, std::greater<>());
  // Middles of quarters on two values at 1/4 and 3/4: 0.75, then 3/4 and 1/4 of the way between,
  // then 0.25; the sum is 2.
  const std::vector<double> expected{0.375, 0.3125, 0.1875, 0.125};
  for (size_t i = 0; i < 4; ++i) CHECK(share[i] == near(expected[i]));
  // Which expert has which differs by layer and not by sample.
  const model::Model wide = of_experts(8, 64);
  const auto first = sample_load(load, wide, 1, 5, 0, 4).share;
  CHECK(first == sample_load(load, wide, 1, 5, 3, 4).share);
  CHECK(first[0] != first[1]);
  CHECK(imbalance_of({first}, 8) < 1.4);  // sorted they would come to 1.5
  // Few experts had rows, and no quantile of the model's hits them.
  const LoadDistribution lone{
      .kind = LoadKind::kTrace,
      .trace = parse_load_trace("iter,layer,e0,e1,e2,e3,e4,e5,e6,e7\n1,0,0,0,5,0,0,0,0,0\n", "t")};
  const auto pair = sample_load(lone, of_experts(1, 2), 1, 0, 0, 1).share[0];
  CHECK(pair[0] + pair[1] == near(1));
}

TEST_CASE("loads and traces that are none end in one line that says what is allowed") {
  for (const char* text : {"", "zip:1", "zipf", "zipf:", "zipf:x", "zipf:nan", "zipf:-1", "zipf:11",
                           "zipf:1x", "hot-expert:0.5", "hot-rank:inf", "uniform:1", "trace:"}) {
    CAPTURE(text);
    const std::string line = refused([&] { parse_load(text); });
    CHECK(line.find("allowed: balanced, zipf:S") != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
  CHECK(refused([] { parse_load("ziph:1"); }).find("did you mean 'zipf'?") != std::string::npos);
  CHECK(refused([] {
          sample("hot-expert:5", of_experts(1, 4), 2, 0, 0);
        }).find("allowed: 1 to 4, the experts") != std::string::npos);
  CHECK(refused([] {
          sample("hot-rank:3", of_experts(1, 4), 2, 0, 0);
        }).find("allowed: 1 to 2, the ranks") != std::string::npos);
  for (const char* text : {"",
                           "a,b,c\n",
                           "iter,layer\n",
                           "iter,layer,e0\n1,0\n",
                           "iter,layer,e0\n1,0,-3\n",
                           "iter,layer,e0\n1,0,nan\n",
                           "iter,layer,e0\n1,0,0\n",
                           "iter,layer,e0\n1,0,1\n1,0,1\n",
                           "{}",
                           "iter,rank,layer\n",
                           "iter,rank,e0\n1,0,1\n",
                           R"({"data": 1})",
                           R"({"data": {"a": [[-1]]}})",
                           R"({"data": {}})",
                           R"({"steps": []})",
                           R"({"steps": [[]]})",
                           R"({"steps": [[[]]]})",
                           R"({"steps": [[["a"]]]})",
                           R"({"steps": [[[-1]]]})",
                           R"({"steps": 3})",
                           "{"}) {
    CAPTURE(text);
    CHECK(refused([&] { parse_load_trace(text, "t"); }).find("t") == 0);
  }
  // Found by the fuzzer: what a cell holds must not steer a terminal.
  CHECK(refused([] {
          parse_load_trace("iter,layer,e0\n1,0,\x7f\n", "t");
        }).find("t: line 2: '?'; allowed: a count") == 0);
}

TEST_CASE("mean, p95 and worst of a list") {
  std::vector<double> values;
  for (int i = 20; i > 0; --i) values.push_back(i);
  const MeanP95Worst spread = spread_of(values);
  CHECK(spread.mean == near(10.5));
  CHECK(spread.p95 == 19);
  CHECK(spread.worst == 20);
  CHECK(spread_of({3}).p95 == 3);
}

TEST_CASE(
    "the busiest expert that is expected: of one that is hot what its word says, else more than "
    "ranks have") {
  const model::Model model = of_experts(2, 16);
  CHECK(expected_busiest_expert(parse_load("balanced"), model) == 1);
  CHECK(expected_busiest_expert(parse_load("hot-expert:3"), model) == near(3.0));
  CHECK(expected_busiest_expert(parse_load("hot-rank:3"), model) == 1);  // of ranks, not of experts
  const LoadDistribution zipf = parse_load("zipf:0.3");
  CHECK(expected_busiest_expert(zipf, model) > expected_imbalance(zipf, model, 8));
  CHECK(expected_imbalance(zipf, model, 8) > expected_imbalance(zipf, model, 2));
}

}  // namespace piper::cost
