#include <doctest/doctest.h>
#include <piper/optim/optimizer.h>
#include <piper/optim/parameter_share.h>

#include <map>

namespace piper::optim {
namespace {

// Buffers of two layers over the data group and one of experts, as a rank of ep 2 has them.
std::vector<nn::Parameter> parameters(at::ScalarType type = at::kFloat) {
  std::vector<nn::Parameter> list;
  std::map<std::pair<int32_t, strategy::Axis>, int64_t> offset;
  const auto add = [&](const char* name, int32_t layer, strategy::Axis replicas,
                       std::vector<int64_t> shape) {
    nn::Parameter p;
    p.name = name;
    p.value = at::randn(shape).to(type);
    p.gradient = at::randn(shape, type == at::kDouble ? at::kDouble : at::kFloat);
    p.layer = layer;
    p.sharding.replicas = replicas;
    p.offset = offset[{layer, replicas}];
    offset[{layer, replicas}] += p.value.numel();
    list.push_back(p);
  };
  add("a", 0, strategy::Axis::kData, {5, 7});
  add("experts", 0, strategy::Axis::kExpertData, {2, 3, 11});
  add("b", 0, strategy::Axis::kData, {13});
  add("c", 1, strategy::Axis::kData, {97});
  add("d", 1, strategy::Axis::kData, {1});
  return list;
}

}  // namespace

TEST_CASE("over the ranks that hold a parameter every element is in one share") {
  const std::vector<nn::Parameter> held = parameters();
  const strategy::RankLayout layout(strategy::Mesh{.pp = 2, .ep = 2, .dp = 6});
  std::map<std::pair<size_t, int64_t>, int> times;
  for (int64_t member = 0; member < 6; ++member) {
    int64_t dense = 0;
    for (const ParameterShare& share : own_shares(held, layout, layout.rank(1, member))) {
      CHECK(share.begin < share.end);
      for (int64_t i = share.begin; i < share.end; ++i) ++times[{share.parameter, i}];
      if (share.parameter != 1) dense += share.end - share.begin;
    }
    CHECK(dense >= 48 / 6 + 98 / 6);  // the buffers are cut, not the parameters
    CHECK(dense <= 48 / 6 + 98 / 6 + 1);
  }
  for (size_t p = 0; p < held.size(); ++p)
    for (int64_t i = 0; i < held[p].value.numel(); ++i)
      CHECK(times[{p, i}] == (p == 1 ? 2 : 1));  // two ep indices hold different experts
}

TEST_CASE("shares updated one by one are the whole updated at once, to the bit") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    at::manual_seed(5);
    const std::vector<nn::Parameter> whole = parameters(type);
    std::vector<nn::Parameter> divided = whole;
    for (nn::Parameter& p : divided) p.value = p.value.clone();
    const strategy::RankLayout layout(strategy::Mesh{.dp = 3});
    AdamW at_once(whole, {});
    std::vector<AdamW> optimizers;
    double squares = 0;
    for (int64_t r = 0; r < 3; ++r) {
      const std::vector<ParameterShare> own = own_shares(divided, layout, Rank(r));
      optimizers.emplace_back(divided, AdamWOptions{}, own);
      squares += sum_of_squares(divided, own);
    }
    CHECK(squares == doctest::Approx(sum_of_squares(whole, all_shares(whole))));
    for (int step = 0; step < 3; ++step) {
      at_once.step(1e-2, 0.7);
      for (AdamW& optimizer : optimizers) optimizer.step(1e-2, 0.7);
    }
    for (size_t p = 0; p < whole.size(); ++p) {
      CAPTURE(whole[p].name);
      CHECK(at::equal(whole[p].value, divided[p].value));
    }
  }
}

TEST_CASE("the state of a share says which elements it is") {
  const std::vector<nn::Parameter> held = parameters();
  const AdamW optimizer(held, {}, std::vector<ParameterShare>{{3, 10, 40}});
  const std::vector<nn::NamedTensor> state = optimizer.state();
  REQUIRE(state.size() == 3);  // two moments and the number of steps
  CHECK(nn::in_file(state[0]).name == "first_moment/c [97] 0:0-97 elements 10-40");
  CHECK(state[0].value.numel() == 30);
  CHECK(optimizer.is_divided());
}

}  // namespace piper::optim
