#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/replicas.h>

#include <cstring>
#include <random>

namespace piper::train {
namespace {

std::vector<nn::Parameter> parameters() {
  nn::Parameter dense, expert;
  dense.name = "norm";
  dense.value = at::arange(1, 38, at::kFloat);
  expert.name = "experts";
  expert.value = at::arange(1, 101, at::kFloat).view({10, 10});
  expert.sharding = nn::Sharding::kExpert;
  return {dense, expert};
}

// On a mesh of one stage; experts are the same on all here, which groups by ep index do not mind.
std::vector<std::string> on_ranks(int64_t num_ranks) {
  return std::vector<std::string>(static_cast<size_t>(num_ranks), replica_hashes(parameters()));
}

void flip(at::Tensor value, int64_t element, int bit) {
  uint32_t word;
  auto* data = value.data_ptr<float>() + element;
  std::memcpy(&word, data, sizeof word);
  word ^= uint32_t{1} << bit;
  std::memcpy(data, &word, sizeof word);
}

}  // namespace

TEST_CASE("any flipped exponent bit names its rank, 100 of 100") {
  std::mt19937 random(7);
  int64_t found = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<std::string> handed_in = on_ranks(8);
    std::vector<nn::Parameter> hurt = parameters();
    const size_t which = random() % 2;
    flip(hurt[which].value, static_cast<int64_t>(random()) % hurt[which].value.numel(),
         23 + static_cast<int>(random() % 8));
    const size_t rank = random() % 8;
    handed_in[rank] = replica_hashes(hurt);
    // Experts have four replicas here, the rest eight.
    const std::vector<std::string> lines = drifted_replicas({.pp = 1, .ep = 2, .dp = 8}, handed_in);
    found += lines.size() == 1 && lines[0] == "rank " + std::to_string(rank) + "'s copy of " +
                                                  hurt[which].name + " differs from that of its " +
                                                  (which == 1 ? "3" : "7") + " replicas";
  }
  CHECK(found == 100);
}

TEST_CASE("equal replicas are silent; two that differ are both named; stages are apart") {
  CHECK(drifted_replicas({.pp = 2, .ep = 1, .dp = 2}, on_ranks(4)).empty());
  std::vector<std::string> handed_in = on_ranks(4);
  std::vector<nn::Parameter> hurt = parameters();
  flip(hurt[0].value, 36, 0);
  flip(hurt[1].value, 0, 31);
  handed_in[2] = replica_hashes(hurt);
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
