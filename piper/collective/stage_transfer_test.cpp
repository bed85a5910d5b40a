#include <piper/collective/stage_transfer.h>

#include "exchange_cases.h"

namespace piper::collective {
namespace {

ExpectedOf arriving(const std::vector<Transfer>& transfers) {
  return [&](int64_t m, Sums&) {
    std::vector<Expected> expected;
    std::vector<int64_t> sent(100, 0);
    int64_t received = 0;
    for (const Transfer& transfer : transfers) {
      if (transfer.to == m && transfer.count > 0) {
        expected.push_back({received, {transfer.count, transfer.from, sent[transfer.from]}});
        received += transfer.count;
      }
      sent[transfer.from] += transfer.count;
    }
    return expected;
  };
}

StepsOf steps_of(const Topology& topology, const std::vector<Transfer>& transfers, bool spread) {
  return [&, spread](int64_t m) { return stage_transfer(m, topology, transfers, spread); };
}

std::vector<Transfer> random_transfers(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Transfer> transfers;
  for (int i = 0; n > 1 && i < 12; ++i) {
    const auto from = static_cast<int32_t>(random() % static_cast<uint32_t>(n));
    const auto shift = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(n - 1));
    transfers.push_back(
        {from, (from + shift) % static_cast<int32_t>(n), static_cast<int64_t>(random() % 20)});
  }
  return transfers;
}

TEST_CASE("transfers between stages arrive, straight and spread over NICs") {
  uint32_t seed = 0;
  for (const Topology& topology : small_topologies())
    for (const bool spread : {false, true}) {
      CAPTURE(to_text(topology));
      const std::vector<Transfer> transfers = random_transfers(num_members(topology), ++seed);
      CHECK(first_of(
                prove(topology, steps_of(topology, transfers, spread), false, arriving(transfers))
                    .problems) == "");
    }
}

TEST_CASE("a lone message of 80 spread over four NICs leaves and enters 20 through each") {
  const Topology topology = even_nodes(2, 8, 4);
  const std::vector<Transfer> lone{{2, 10, 80}};
  const Proof plain = prove(topology, steps_of(topology, lone, false), false, arriving(lone));
  CHECK(plain.nics[0][1].out == Traffic{1, 80});  // member 2 is behind NIC 1
  CHECK(plain.max_scratch == 0);
  const Proof spread = prove(topology, steps_of(topology, lone, true), false, arriving(lone));
  for (int nic = 0; nic < 4; ++nic) {
    CHECK(spread.nics[0][nic].out == Traffic{1, 20});
    CHECK(spread.nics[1][nic].in == Traffic{1, 20});
  }
  CHECK(spread.by_level[0] == Traffic{6, 120});  // to three neighbours, and from three
}

TEST_CASE("concurrent pairs keep to their own NICs and load them evenly, spread or not") {
  const Topology topology = even_nodes(2, 8, 4);
  std::vector<Transfer> pairs;
  for (int32_t m = 0; m < 8; ++m) pairs.push_back({m, 8 + m, 40});
  for (const bool spread : {false, true}) {
    const Proof proof = prove(topology, steps_of(topology, pairs, spread), false, arriving(pairs));
    for (int nic = 0; nic < 4; ++nic) CHECK(proof.nics[0][nic].out.units == 80);
  }
}

TEST_CASE("every step of a transfer is needed") {
  const Topology topology = even_nodes(2, 4, 2);
  const std::vector<Transfer> transfers{{0, 4, 7}, {1, 6, 5}, {2, 3, 4}, {5, 0, 3}};
  const StepsOf steps = steps_of(topology, transfers, true);
  for (int64_t m = 0; m < 8; ++m) {
    const MemberSteps whole = steps(m);
    for (size_t s = 0; s < whole.steps.size(); ++s) {
      const StepsOf broken = [&](int64_t other) {
        return other == m ? without_step(whole, static_cast<int32_t>(s)) : steps(other);
      };
      CHECK_FALSE(prove(topology, broken, false, arriving(transfers)).problems.empty());
    }
  }
}

}  // namespace
}  // namespace piper::collective
