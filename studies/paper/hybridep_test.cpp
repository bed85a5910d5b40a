// HybridEP's own numbers, and where the print cannot be taken at its word.
#include <doctest/doctest.h>
#include <studies/paper/hybridep.h>

#include <vector>

using namespace piper::studies::paper::hybridep;

namespace {

// Table IV: 8 GPUs, 128 Gbit/s.
Layer of_table_4(double pre_expert_seconds, double data_mb, double expert_mb) {
  return {.gpus = 8,
          .bandwidth = 16e9,
          .pre_expert_seconds = pre_expert_seconds,
          .data_bytes = 1e6 * data_mb,
          .expert_bytes = 1e6 * expert_mb};
}

Levels one_level(int64_t gpus, int64_t domain) { return {{gpus}, {domain}}; }

}  // namespace

TEST_CASE("eq. 3, 4 and 10, by hand") {
  const Layer layer{
      .gpus = 4, .bandwidth = 2, .pre_expert_seconds = 5, .data_bytes = 16, .expert_bytes = 3};
  CHECK(all_to_all_seconds(layer, 1) == 6);
  CHECK(all_to_all_seconds(layer, 0.5) == 3);
  CHECK(all_gather_seconds(layer, 0) == 4.5);
  CHECK(seconds(layer, 1) == 5 + 12);
  CHECK(seconds(layer, 0) == 5);  // hidden
  CHECK(best_proportion(layer) == 0);
}

TEST_CASE("Table IV's proportions and domains: the pre-expert time has lost a factor of ten") {
  const Layer mix_1 = of_table_4(0.49e-3, 8, 4.7), mix_2 = of_table_4(0.49e-3, 8, 2.35);
  CHECK(best_proportion(mix_1) == doctest::Approx(0.762).epsilon(1e-3));
  CHECK(best_proportion(mix_2) == doctest::Approx(0.523).epsilon(1e-3));
  CHECK(best_domain(mix_1) == 2);                               // p = 0.75
  CHECK(best_domain(mix_2) == 4);                               // p = 0.5
  CHECK(best_proportion(of_table_4(0.049e-3, 8, 4.7)) > 0.97);  // as printed
  for (const double expert_mb : {0.094, 0.047}) {
    const Layer gathers = of_table_4(0.099e-3, 3, expert_mb);
    CHECK(best_proportion(gathers) == 0);
    CHECK(best_domain(gathers) == 8);
  }
}

TEST_CASE("no proportion is better than the best one") {
  for (const double data_mb : {1.0, 8.0, 40.0})
    for (const double expert_mb : {0.1, 2.0, 9.0}) {
      const Layer layer = of_table_4(0.3e-3, data_mb, expert_mb);
      const double best = seconds(layer, best_proportion(layer));
      for (int i = 0; i <= 100; ++i) CHECK(best <= seconds(layer, i / 100.0) * (1 + 1e-12));
    }
}

TEST_CASE("Algorithm 1 on Fig. 8: four data centres of four GPUs, domains of 2 and 4") {
  const Levels levels{{4, 4}, {2, 4}};
  CHECK(location(levels, 13) == std::vector<int64_t>{3, 1});
  CHECK(travel(levels, 0, 0, 4) == Travel::kAllGather);  // the other data centre of the domain
  CHECK(travel(levels, 0, 0, 8) == Travel::kAllToAll);   // the other domain, the same offset
  CHECK(travel(levels, 0, 0, 12) == Travel::kNone);      // another offset
  CHECK(travel(levels, 0, 0, 5) == Travel::kNone);       // another GPU of it
  CHECK(travel(levels, 1, 4, 6) == Travel::kAllGather);
  CHECK(travel(levels, 1, 4, 4) == Travel::kNone);
  CHECK(travel(levels, 1, 0, 5) == Travel::kNone);
}

TEST_CASE("Table VII: messages by the size of the domain") {
  for (const int64_t gpus : {8, 16, 32})
    for (int64_t domain = 1; domain <= gpus; domain *= 2) {
      const Levels levels = one_level(gpus, domain);
      CHECK(num_messages(levels, Travel::kAllToAll) == gpus * (gpus / domain - 1));
      CHECK(num_messages(levels, Travel::kAllGather) == gpus * (domain - 1));
    }
}
