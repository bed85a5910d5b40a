#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/replicas.h>

#include <cstring>
#include <random>

namespace piper::train {
namespace {

// A rank's parameters with their optimizer: in bf16 with masters, some steps into training.
struct Held {
  std::vector<nn::Parameter> parameters;
  optim::AdamW optimizer;

  static std::vector<nn::Parameter> make(at::ScalarType type, int64_t index, int64_t count) {
    const auto parameter = [&](const char* name, int64_t size) {
      nn::Parameter p;
      p.name = name;
      p.value = at::arange(1, size + 1, at::kFloat).to(type);
      p.gradient = at::arange(2, size + 2, at::kFloat);
      return p;
    };
    nn::Parameter experts = parameter("experts", 100);
    experts.sharding = {.replicas = strategy::Axis::kExpertData, .index = index, .count = count};
    return {parameter("norm", 37), experts};
  }
  // Holds the part at `index` of `count` parts of the experts.
  explicit Held(at::ScalarType type = at::kFloat, int64_t index = 0, int64_t count = 1)
      : parameters(make(type, index, count)), optimizer(parameters, {}) {
    optimizer.step(1e-3);
  }
  std::string hashes() const { return replica_hashes(parameters, optimizer); }
};

// Rank r holds part r % ep of the experts, with the same values on all here, which parts do not
// mind.
std::vector<std::string> on_ranks(int64_t num_ranks, at::ScalarType type = at::kFloat,
                                  int64_t ep = 1) {
  std::vector<std::string> hashes;
  for (int64_t r = 0; r < num_ranks; ++r) hashes.push_back(Held(type, r % ep, ep).hashes());
  return hashes;
}

void flip(at::Tensor value, int64_t element, int bit) {
  uint32_t word;
  auto* data = value.data_ptr<float>() + element;
  std::memcpy(&word, data, sizeof word);
  word ^= uint32_t{1} << bit;
  std::memcpy(data, &word, sizeof word);
}

}  // namespace

TEST_CASE("any flipped exponent bit of weights, moments or masters names its rank, 100 of 100") {
  std::mt19937 random(7);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    int64_t found = 0, of_optimizer = 0;
    for (int i = 0; i < 100; ++i) {
      std::vector<std::string> handed_in = on_ranks(8, type, 2);
      const size_t rank = random() % 8;
      Held hurt(type, static_cast<int64_t>(rank) % 2, 2);
      std::vector<nn::NamedTensor> fp32;
      for (const nn::Parameter& p : hurt.parameters)
        if (type == at::kFloat) fp32.push_back({p.name, p.value});
      for (const nn::NamedTensor& tensor : hurt.optimizer.state())
        if (tensor.value.scalar_type() == at::kFloat) fp32.push_back(tensor);
      REQUIRE(fp32.size() == 6);  // weights or masters, and two moments, of two parameters
      const nn::NamedTensor& which = fp32[random() % fp32.size()];
      const bool is_expert = which.name.ends_with("experts");
      flip(which.value, static_cast<int64_t>(random()) % which.value.numel(),
           23 + static_cast<int>(random() % 8));
      handed_in[rank] = hurt.hashes();
      // Experts have four replicas here, the rest eight.
      const std::vector<std::string> lines =
          drifted_replicas({.pp = 1, .ep = 2, .dp = 8}, handed_in);
      found += lines.size() == 1 && lines[0] == "rank " + std::to_string(rank) + "'s copy of " +
                                                    which.name + " differs from that of its " +
                                                    (is_expert ? "3" : "7") + " replicas";
      of_optimizer += which.name.find('/') != std::string::npos;
    }
    CHECK(found == 100);
    CHECK(of_optimizer > 50);
  }
}

TEST_CASE("equal replicas are silent; two that differ are both named; stages are apart") {
  CHECK(drifted_replicas({.pp = 2, .ep = 1, .dp = 2}, on_ranks(4)).empty());
  std::vector<std::string> handed_in = on_ranks(4);
  Held hurt;
  flip(hurt.parameters[0].value, 36, 0);
  flip(hurt.parameters[1].value, 0, 31);
  handed_in[2] = hurt.hashes();
  const std::vector<std::string> lines = drifted_replicas({.pp = 2, .ep = 1, .dp = 2}, handed_in);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] ==
        "the copies of experts (and of 1 more) on ranks 2, 3 differ, none has a majority");
  // With an expert degree of 2 the two hold different experts, which nobody compares.
  Held other(at::kFloat, 1, 2);
  handed_in = on_ranks(4, at::kFloat, 2);
  flip(other.parameters[0].value, 36, 0);
  flip(other.parameters[1].value, 0, 31);
  handed_in[3] = other.hashes();
  const std::vector<std::string> apart = drifted_replicas({.pp = 2, .ep = 2, .dp = 2}, handed_in);
  REQUIRE(apart.size() == 1);
  CHECK(apart[0].find("copies of norm on") != std::string::npos);
}

TEST_CASE("garbage is refused") { CHECK_THROWS_AS(drifted_replicas({}, {"garbage"}), CommError); }

}  // namespace piper::train
