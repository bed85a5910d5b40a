#include <fmt/core.h>
#include <piper/base/error.h>
#include <testing/collective/prove.h>

#include <algorithm>

namespace piper::collective {
namespace {

std::vector<MemberSteps> all_members(const Topology& topology, const StepsOf& steps) {
  std::vector<MemberSteps> members;
  const int64_t n = num_members(topology);
  members.reserve(n);
  for (int64_t m = 0; m < n; ++m) members.push_back(steps(m));
  return members;
}

size_t level_between(const Topology& topology, int64_t a, int64_t b) {
  size_t level = 0;
  while (level < topology.unit.size() && topology.unit[level][a] != topology.unit[level][b])
    ++level;
  return level;
}

NicTraffic& nic_of(Proof& proof, const Topology& topology, int64_t member) {
  const int32_t node = topology.unit[0][member];
  const int32_t nic = topology.nic.empty() ? 0 : topology.nic[member];
  return proof.nics[node][nic];
}

void count_message(Proof& proof, const Topology& topology, int64_t from, const Step& step) {
  const size_t level = level_between(topology, from, step.peer);
  const auto count = [&](Traffic& traffic) {
    ++traffic.messages;
    traffic.units += step.source.count;
  };
  count(proof.by_level[level]);
  if (level == 0) return;
  count(nic_of(proof, topology, from).out);
  count(nic_of(proof, topology, step.peer).in);
}

void count_steps(Proof& proof, const Topology& topology, const std::vector<MemberSteps>& members) {
  const Units nodes(topology, 0);
  const int32_t last_nic =
      topology.nic.empty() ? 0 : *std::max_element(topology.nic.begin(), topology.nic.end());
  proof.by_level.resize(topology.unit.size() + 1);
  proof.nics.assign(nodes.num_units(), std::vector<NicTraffic>(static_cast<size_t>(last_nic) + 1));
  for (size_t m = 0; m < members.size(); ++m) {
    proof.max_scratch = std::max(proof.max_scratch, members[m].scratch_count);
    proof.num_steps += static_cast<int64_t>(members[m].steps.size());
    for (const Step& step : members[m].steps) {
      if (step.kind == StepKind::kSend)
        count_message(proof, topology, static_cast<int64_t>(m), step);
      else if (moves_rows(step.kind))
        proof.copied += step.num_rows * members[m].row_count;
      else if (step.kind != StepKind::kReceive)
        proof.copied += step.source.count;
    }
  }
}

// Compares what lies in the output with a list of pieces; the lists may be cut differently.
class Comparison {
 public:
  Comparison(SymbolicExecutor& executor, size_t member, int64_t offset, int64_t count)
      : executor_(executor),
        member_(member),
        offset_(offset),
        held_(executor.read(member, {Buffer::kOutput, offset, count})) {}

  // False once something is wrong.
  bool next(Piece expected) {
    while (expected.count > 0 && at_ < held_.size()) {
      Piece& held = held_[at_];
      if (held.label != expected.label || held.first != expected.first) {
        executor_.problem(fmt::format("member {} output {} is {} of {} and not {} of {}", member_,
                                      offset_, held.first, held.label, expected.first,
                                      expected.label));
        return false;
      }
      const int64_t count = std::min(held.count, expected.count);
      for (Piece* piece : {&held, &expected}) {
        piece->count -= count;
        piece->first += count;
      }
      offset_ += count;
      if (held.count == 0) ++at_;
    }
    return expected.count == 0;
  }

 private:
  SymbolicExecutor& executor_;
  size_t member_;
  int64_t offset_;
  std::vector<Piece> held_;
  size_t at_ = 0;
};

void check_exchange(SymbolicExecutor& executor, const std::vector<MemberSteps>& members,
                    const CountOf& count) {
  const auto n = static_cast<int64_t>(members.size());
  std::vector<int64_t> taken(n, 0);  // by source: what members before `to` get
  for (int64_t to = 0; to < n; ++to) {
    int64_t sum = 0;
    Comparison output(executor, to, 0, members[to].output_count);
    for (int64_t from = 0; from < n; ++from) {
      const int64_t units = count(from, to);
      if (units == 0) continue;
      if (!output.next({units, static_cast<int32_t>(from), taken[from]})) break;
      taken[from] += units;
      sum += units;
    }
    if (sum != members[to].output_count)
      executor.problem(
          fmt::format("member {} has {} units instead of {}", to, members[to].output_count, sum));
    if (executor.memory(to, Buffer::kOutput).overwritten())
      executor.problem(fmt::format("member {} has written an output twice", to));
    if (!executor.problems().empty()) return;
  }
}

}  // namespace

Proof prove_all_to_all(const Topology& topology, const StepsOf& steps, const CountOf& count) {
  const std::vector<MemberSteps> members = all_members(topology, steps);
  Proof proof;
  SymbolicExecutor executor(members, false);
  if (executor.execute()) {
    count_steps(proof, topology, members);
    check_exchange(executor, members, count);
  }
  proof.problems = std::move(executor.problems());
  return proof;
}

Proof prove(const Topology& topology, const StepsOf& steps, bool in_place,
            const ExpectedOf& expected) {
  const std::vector<MemberSteps> members = all_members(topology, steps);
  Proof proof;
  SymbolicExecutor executor(members, in_place);
  if (executor.execute()) {
    count_steps(proof, topology, members);
    for (size_t m = 0; m < members.size(); ++m)
      for (const Expected& part : expected(static_cast<int64_t>(m), executor.sums())) {
        Comparison output(executor, m, part.offset, part.piece.count);
        if (!output.next(part.piece)) break;
      }
  }
  proof.problems = std::move(executor.problems());
  return proof;
}

MemberSteps in_rounds(const MemberSteps& member) {
  MemberSteps result = member;
  result.steps.clear();
  std::vector<int32_t> moved(member.steps.size());  // by step: its place in the result
  std::vector<int32_t> round;
  int32_t gate = -1;
  size_t round_begin = 0;
  for (size_t s = 0; s < member.steps.size(); ++s) {
    Step step = member.steps[s];
    const bool waits = std::any_of(step.after.begin(), step.after.end(), [&](int32_t before) {
      return before >= static_cast<int32_t>(round_begin);
    });
    if (waits) {
      gate = static_cast<int32_t>(result.steps.size());
      result.steps.push_back({.kind = StepKind::kCopy, .after = round});
      result.steps.back().target.buffer = Buffer::kOutput;
      round.clear();
      round_begin = s;
    }
    for (int32_t& before : step.after) before = moved[before];
    if (gate >= 0) step.after.push_back(gate);
    moved[s] = static_cast<int32_t>(result.steps.size());
    round.push_back(moved[s]);
    result.steps.push_back(std::move(step));
  }
  return result;
}

}  // namespace piper::collective
