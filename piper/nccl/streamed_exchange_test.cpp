#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/collective/reductions.h>
#include <testing/collective/dedup_cases.h>
#include <testing/collective/exchange_cases.h>

#include <atomic>

#include "stand_in_world.h"

namespace piper::nccl {
namespace {

using collective::MemberSteps;
using collective::Topology;
using comm::Element;
using comm::Unit;
using StepsOf = std::function<MemberSteps(int64_t member)>;

struct Case {
  std::string name;
  StepsOf steps;
  Unit unit = {1, Element::kInt64};
  StepsOf oracle = {};  // others than the steps
};

std::vector<std::byte> random_bytes(int64_t count, const Unit& unit, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count * unit.bytes);
  if (unit.bytes == 1) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  for (int64_t i = 0; i < count; ++i) {  // numbers whose sums are rounded
    const double value = static_cast<double>(random()) / 3;
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

// What the executor on plain buffers makes of the same steps.
std::vector<std::byte> expected(comm::Transport& transport, uint64_t key, const Case& one,
                                const std::vector<std::byte>& input,
                                std::vector<std::byte> output) {
  const int64_t rank = transport.rank().value;
  comm::Group group{{}, rank};
  for (int64_t r = 0; r < transport.world_size(); ++r) group.members.emplace_back(r);
  const MemberSteps steps = one.oracle ? one.oracle(rank) : one.steps(rank);
  comm::ExecutionBuffers buffers{.input = input, .output = output};
  buffers.scratch.reset(new std::byte[steps.scratch_count * one.unit.bytes + 1],
                        std::default_delete<std::byte[]>());
  comm::StepExecutor executor(transport, group, {key, one.name}, steps, buffers, one.unit);
  comm::wait(transport, executor, 20);
  return output;
}

// Executes each case twice, the second time on other data; says which went wrong.
std::string first_wrong(const StandIn& stand_in, int64_t num_ranks,
                        const std::vector<Case>& cases) {
  comm::LocalWorld world(num_ranks);
  std::mutex mutex;
  std::string wrong;
  run_ranks(stand_in, world, [&](comm::Transport& transport, Communicator& communicator) {
    const auto rank = static_cast<uint32_t>(transport.rank().value);
    HostOperations operations(stand_in.library());
    uint64_t key = 0;
    for (const Case& one : cases) {
      const MemberSteps steps = one.steps(rank);
      std::vector<std::byte> input, output(steps.output_count * one.unit.bytes + 1),
          scratch(steps.scratch_count * one.unit.bytes + 1);
      input.resize(steps.input_count * one.unit.bytes + 1);
      StreamedExchange exchange(communicator, one.name, steps,
                                {input.data(), output.data(), scratch.data()}, one.unit,
                                &operations);
      for (uint32_t round = 0; round < 2; ++round) {
        ++key;
        const auto in = random_bytes(steps.input_count, one.unit, 1000 * round + rank);
        const auto out = random_bytes(steps.output_count, one.unit, 1000 * round + rank + 500);
        std::copy(in.begin(), in.end(), input.begin());
        std::copy(out.begin(), out.end(), output.begin());
        exchange.start(key);
        wait(exchange, 20);
        output.pop_back();
        const bool same = output == expected(transport, key, one, in, out);
        output.push_back({});
        const std::lock_guard lock(mutex);
        if (!same && wrong.empty()) wrong = one.name;
      }
    }
  });
  return wrong;
}

std::vector<Case> exchanges(const Topology& topology, const collective::CountTable& table) {
  std::vector<Case> cases;
  for (const collective::AllToAll algorithm : strategy::kAllToAlls)
    for (const int64_t chunk : {int64_t{7}, collective::kUncut})
      for (const auto phase_one :
           {collective::PhaseOne::kUnderTwo, collective::PhaseOne::kUnderThree})
        cases.push_back({strategy::name(algorithm), [=, &table](int64_t m) {
                           return collective::all_to_all(algorithm, m, topology,
                                                         collective::count_in(table),
                                                         {chunk, 3, phase_one});
                         }});
  return cases;
}

std::vector<Topology> topologies() {
  return {collective::apart(1),
          collective::nodes_of({2}),
          collective::even_nodes(2, 2),
          collective::even_nodes(2, 4, 2),
          collective::nodes_of({2, 3, 1}),
          collective::nodes_of({3, 1, 2, 1}, 2),
          collective::dealt(7, 3)};
}

TEST_CASE("every exchange executes on streams as on plain buffers, uneven, empty and even counts") {
  const StandIn stand_in(kStrict);
  uint32_t seed = 0;
  for (const Topology& topology : topologies()) {
    const int64_t n = collective::num_members(topology);
    for (const collective::CountTable& table :
         {collective::uneven_counts(n, ++seed), collective::even_counts(n, 20),
          collective::even_counts(n, 0)}) {
      CAPTURE(collective::to_text(topology));
      CHECK(first_wrong(stand_in, n, exchanges(topology, table)) == "");
      CHECK(stand_in.first_fault() == "");
    }
  }
}

TEST_CASE("exchanges are right whichever stream dawdles, with messages of a group together, too") {
  StandInOptions options = kStrict;
  options.jitter_us = 300;
  options.one_by_one = false;
  const StandIn stand_in(options);
  const Topology topology = collective::nodes_of({2, 3, 1});
  const collective::CountTable table = collective::uneven_counts(6, 77);
  CHECK(first_wrong(stand_in, 6, exchanges(topology, table)) == "");
  CHECK(stand_in.first_fault() == "");
}

TEST_CASE("reductions add on streams in the same order as on plain buffers") {
  StandInOptions options = kStrict;
  options.jitter_us = 50;
  const StandIn stand_in(options);
  for (const Topology& topology : topologies()) {
    std::vector<Case> cases;
    for (const collective::ReductionAlgorithm algorithm : collective::kReductionAlgorithms)
      for (const int64_t count : {0, 1, 5, 64})
        for (const auto& reduction :
             {collective::reduce_scatter, collective::all_gather, collective::all_reduce})
          cases.push_back({fmt::format("{} of {}", collective::name(algorithm), count),
                           [=](int64_t m) { return reduction(algorithm, m, topology, count); },
                           {sizeof(double), Element::kFloat64}});
    CAPTURE(collective::to_text(topology));
    CHECK(first_wrong(stand_in, collective::num_members(topology), cases) == "");
    CHECK(stand_in.first_fault() == "");
  }
}

TEST_CASE("deduplicated exchanges move and add rows on streams as on plain buffers") {
  StandInOptions options = kStrict;
  options.jitter_us = 50;
  const StandIn stand_in(options);
  uint32_t seed = 0;
  for (const Topology& topology : topologies()) {
    const int64_t n = collective::num_members(topology);
    const collective::Units units(topology, 0);
    std::vector<collective::Routes> routes;
    for (int i = 0; i < 2; ++i) routes.push_back(collective::random_routes(n, 3, ++seed));
    std::vector<Case> cases;
    for (const collective::Routes& some : routes)
      for (const int64_t pieces : {1, 3})
        for (const auto& algorithm :
             {collective::halo_dedup_dispatch, collective::halo_dedup_combine})
          cases.push_back({fmt::format("halo-dedup in {}", pieces),
                           [=, &some, &units](int64_t m) {
                             return algorithm(m, topology,
                                              collective::known_to(m, some, units, pieces),
                                              {.row_count = 4, .num_pieces = pieces});
                           },
                           {sizeof(double), Element::kFloat64}});
    CAPTURE(collective::to_text(topology));
    CHECK(first_wrong(stand_in, n, cases) == "");
    CHECK(stand_in.first_fault() == "");
  }
}

// --- what the stand-in must not let pass

// One rank executes its groups in another order.
MemberSteps backwards(MemberSteps steps) {
  for (collective::Step& step : steps.steps) {
    step.round = 100 - step.round;
    step.after.clear();
  }
  return steps;
}

TEST_CASE("a programme in a wrong order hangs, and is said to") {
  const StandIn stand_in(kStrict);
  comm::LocalWorld world(4);
  const auto execute = [&](comm::Transport& transport, Communicator& communicator) {
    const int64_t rank = transport.rank().value;
    MemberSteps steps =
        collective::all_to_all(collective::AllToAll::kPairwise, rank, collective::apart(4),
                               [](int64_t, int64_t) { return 8; });
    if (rank == 2) steps = backwards(steps);
    std::vector<std::byte> input(32), output(32);
    StreamedExchange exchange(communicator, "tokens", steps, {input.data(), output.data(), nullptr},
                              {}, nullptr);
    exchange.start(1);
    wait(exchange, 0.3);
  };
  std::string said;
  try {
    run_ranks(stand_in, world, execute);
  } catch (const CommError& error) {
    said = error.what();
  }
  CHECK(said.find("timed out after 0.3 s in 'tokens', group ") != std::string::npos);
}

#ifdef __SANITIZE_THREAD__
constexpr bool kSeesRaces = true;  // and says so, which is no failure here
#else
constexpr bool kSeesRaces = false;
#endif

TEST_CASE("copies that do not wait for what they copy bring wrong bytes" *
          doctest::skip(kSeesRaces)) {
  StandInOptions options = kStrict;
  options.jitter_us = 500;
  const StandIn stand_in(options);
  const Topology topology = collective::even_nodes(2, 2);
  const auto sound = [&](int64_t m) {
    return collective::all_to_all(collective::AllToAll::kHaloPrinted, m, topology,
                                  [](int64_t, int64_t) { return 8; });
  };
  const auto broken = [&](int64_t m) {
    MemberSteps steps = sound(m);
    for (collective::Step& step : steps.steps)
      if (step.kind == collective::StepKind::kCopy) step.after.clear();
    return steps;
  };
  CHECK(first_wrong(stand_in, 4, {{"sound", sound}}) == "");
  CHECK(first_wrong(stand_in, 4, {{.name = "broken", .steps = broken, .oracle = sound}}) ==
        "broken");
}

}  // namespace
}  // namespace piper::nccl
