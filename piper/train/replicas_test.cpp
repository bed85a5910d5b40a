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
  AdamW optimizer;

  static std::vector<nn::Parameter> make(at::ScalarType type) {
    const auto parameter = [&](const char* name, int64_t size, nn::Sharding sharding) {
      nn::Parameter p;
      p.name = name;
      p.value = at::arange(1, size + 1, at::kFloat).to(type);
      p.gradient = at::arange(2, size + 2, at::kFloat);
      p.sharding = sharding;
      return p;
    };
    nn::Parameter dense = parameter("norm", 37, nn::Parameter().sharding);
    return {dense, parameter("experts", 100, nn::Sharding::kExpert)};
  }
  explicit Held(at::ScalarType type = at::kFloat)
      : parameters(make(type)), optimizer(parameters, {}) {
    optimizer.step(1e-3);
  }
  std::string hashes() const { return replica_hashes(parameters, optimizer); }
};

// On a mesh of one stage; experts are the same on all here, which groups by ep index do not mind.
std::vector<std::string> on_ranks(int64_t num_ranks, at::ScalarType type = at::kFloat) {
  return std::vector<std::string>(static_cast<size_t>(num_ranks), Held(type).hashes());
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
      std::vector<std::string> handed_in = on_ranks(8, type);
      Held hurt(type);
      std::vector<NamedTensor> fp32;
      for (const nn::Parameter& p : hurt.parameters)
        if (type == at::kFloat) fp32.push_back({p.name, p.value});
      for (const NamedTensor& tensor : hurt.optimizer.state())
        if (tensor.value.scalar_type() == at::kFloat) fp32.push_back(tensor);
      REQUIRE(fp32.size() == 6);  // weights or masters, and two moments, of two parameters
      const NamedTensor& which = fp32[random() % fp32.size()];
      const bool is_expert = which.name.ends_with("experts");
      flip(which.value, static_cast<int64_t>(random()) % which.value.numel(),
           23 + static_cast<int>(random() % 8));
      const size_t rank = random() % 8;
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
  CHECK(drifted_replicas({.pp = 2, .ep = 2, .dp = 2}, handed_in).size() == 1);
  CHECK(drifted_replicas({.pp = 2, .ep = 2, .dp = 2}, handed_in)[0].find("copies of norm on") !=
        std::string::npos);
}

TEST_CASE("garbage is refused") { CHECK_THROWS_AS(drifted_replicas({}, {"garbage"}), CommError); }

}  // namespace piper::train
