#include <fmt/core.h>
#include <piper/collective/races.h>
#include <testing/collective/verify.h>

#include <array>
#include <compare>
#include <map>
#include <tuple>

namespace piper::collective {
namespace {

struct Term {
  int32_t member = 0;
  int64_t element = 0;
  auto operator<=>(const Term&) const = default;
};

struct Cell {
  std::vector<Term> sum;  // in the order of addition; empty = never written
  int64_t num_writes = 0;
};

using Memory = std::array<std::vector<Cell>, kNumBuffers>;

bool overlap(const Block& a, const Block& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.count && b.offset < a.offset + a.count;
}

// One of them writes what the other reads or writes.
bool conflict(const Step& a, const Step& b) {
  const auto writes_into = [](const Step& writer, const Step& other) {
    return has_target(writer.kind) &&
           ((has_source(other.kind) && overlap(writer.target, other.source)) ||
            (has_target(other.kind) && overlap(writer.target, other.target)));
  };
  return writes_into(a, b) || writes_into(b, a);
}

class SymbolicRun {
 public:
  explicit SymbolicRun(const std::vector<MemberSteps>& members) : members_(members) {
    for (const MemberSteps& member : members) {
      const std::array<int64_t, kNumBuffers> counts{member.input_count, member.output_count,
                                                    member.scratch_count};
      Memory& memory = memory_.emplace_back();
      for (int b = 0; b < kNumBuffers; ++b) memory[b].resize(counts[b]);
      finished_.emplace_back(member.steps.size(), false);
    }
  }

  Memory& memory(size_t member) { return memory_[member]; }
  std::vector<std::string>& problems() { return problems_; }

  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // False when the lists are not sound enough to be executed on.
  bool execute() {
    for (size_t m = 0; m < members_.size(); ++m) check_list(m);
    if (!problems_.empty()) return false;
    for (size_t m = 0; m < members_.size(); ++m) check_races(m);
    while (sweep()) {
    }
    for (size_t m = 0; m < members_.size(); ++m)
      for (size_t s = 0; s < finished_[m].size(); ++s)
        if (!finished_[m][s]) problem("member {} step {} never finishes", m, s);
    return problems_.empty();
  }

 private:
  void check_list(size_t m) {
    for (size_t s = 0; s < members_[m].steps.size(); ++s) {
      const Step& step = members_[m].steps[s];
      for (const int32_t before : step.after)
        if (before < 0 || before >= static_cast<int32_t>(s))
          problem("member {} step {} waits for step {}", m, s, before);
      if (has_source(step.kind)) check_block(m, s, step.source);
      if (has_target(step.kind)) check_block(m, s, step.target);
      const bool message = step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
      if (message && (step.peer < 0 || step.peer >= static_cast<int32_t>(members_.size())))
        problem("member {} step {} has no member {} to speak to", m, s, step.peer);
      if (!message && step.source.count != step.target.count)
        problem("member {} step {} joins {} and {} units", m, s, step.source.count,
                step.target.count);
    }
  }

  void check_block(size_t m, size_t s, const Block& block) {
    const auto size = static_cast<int64_t>(memory_[m][static_cast<size_t>(block.buffer)].size());
    if (block.offset < 0 || block.count < 0 || block.offset + block.count > size)
      problem("member {} step {} leaves its buffer: [{}, {}) of {}", m, s, block.offset,
              block.offset + block.count, size);
  }

  void check_races(size_t m) {
    const std::vector<Step>& steps = members_[m].steps;
    std::vector<std::vector<bool>> ordered(steps.size(), std::vector<bool>(steps.size()));
    for (size_t s = 0; s < steps.size(); ++s) {
      for (const int32_t before : steps[s].after) {
        ordered[s][before] = true;
        for (int32_t i = 0; i < before; ++i)
          if (ordered[before][i]) ordered[s][i] = true;
      }
      for (size_t other = 0; other < s; ++other)
        if (!ordered[s][other] && conflict(steps[s], steps[other]))
          problem("member {}: steps {} and {} race", m, other, s);
    }
  }

  bool ready(size_t m, size_t s) const {
    for (const int32_t before : members_[m].steps[s].after)
      if (!finished_[m][before]) return false;
    return true;
  }

  // Starts everything that can start; false when nothing moved.
  bool sweep() {
    bool moved = false;
    for (size_t m = 0; m < members_.size(); ++m)
      for (size_t s = 0; s < members_[m].steps.size(); ++s)
        if (!finished_[m][s] && ready(m, s)) moved = start(m, s) || moved;
    return moved;
  }

  bool start(size_t m, size_t s) {
    const Step& step = members_[m].steps[s];
    switch (step.kind) {
      case StepKind::kSend:
        return post({m, step.peer, step.part}, m, s);
      case StepKind::kReceive:
        return post({step.peer, m, step.part}, m, s);
      case StepKind::kCopy:
      case StepKind::kAdd:
        transfer(m, step.source, m, step.target, step.kind == StepKind::kAdd);
        finished_[m][s] = true;
        return true;
      case StepKind::kCopyRows:
      case StepKind::kAddRows:
        problem("member {} step {} moves rows, which this one does not execute", m, s);
        return false;
    }
    return false;
  }

  using Message = std::tuple<int64_t, int64_t, uint32_t>;  // from, to, part
  struct Posted {
    size_t member, step;
  };

  bool post(Message message, size_t m, size_t s) {
    const auto [place, first] = posted_.try_emplace(message, Posted{m, s});
    if (first) return true;
    const Posted other = place->second;
    if (other.member == m && other.step == s) return false;
    const Step& mine = members_[m].steps[s];
    const Step& theirs = members_[other.member].steps[other.step];
    if (mine.kind == theirs.kind) {
      problem("member {} step {} repeats step {}'s message", m, s, other.step);
      return false;
    }
    const bool sending = mine.kind == StepKind::kSend;
    const Block& source = sending ? mine.source : theirs.source;
    const Block& target = sending ? theirs.target : mine.target;
    if (source.count != target.count)
      problem("member {} sends {} units, member {} receives {}", sending ? m : other.member,
              source.count, sending ? other.member : m, target.count);
    else
      transfer(sending ? m : other.member, source, sending ? other.member : m, target, false);
    finished_[m][s] = finished_[other.member][other.step] = true;
    posted_.erase(place);
    return true;
  }

  void transfer(size_t from, const Block& source, size_t to, const Block& target, bool add) {
    for (int64_t i = 0; i < source.count; ++i) {
      const Cell& read = cell(from, source, i);
      Cell& written = cell(to, target, i);
      ++written.num_writes;
      if (read.sum.empty() || (add && written.sum.empty())) {
        problem("member {} reads what nobody wrote", from);
        return;
      }
      written.sum = add ? added(written.sum, read.sum, to) : read.sum;
    }
  }

  // a + b as one chain: one of the two is a single term. If both are, the lower comes first: x1 +
  // x0 = x0 + x1.
  std::vector<Term> added(std::vector<Term> a, std::vector<Term> b, size_t m) {
    if (b.size() > 1 || (a.size() == 1 && b < a)) std::swap(a, b);
    if (b.size() > 1) problem("member {} adds two sums", m);
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  Cell& cell(size_t m, const Block& block, int64_t i) {
    return memory_[m][static_cast<size_t>(block.buffer)][block.offset + i];
  }

  const std::vector<MemberSteps>& members_;
  std::vector<Memory> memory_;
  std::vector<std::vector<bool>> finished_;
  std::map<Message, Posted> posted_;
  std::vector<std::string> problems_;
};

std::vector<Cell>& fill(SymbolicRun& run, size_t member, Buffer buffer) {
  std::vector<Cell>& cells = run.memory(member)[static_cast<size_t>(buffer)];
  for (size_t i = 0; i < cells.size(); ++i)
    cells[i].sum = {Term{static_cast<int32_t>(member), static_cast<int64_t>(i)}};
  return cells;
}

// What member `m`'s output must be.
std::vector<Term> expected_exchange(const std::vector<std::vector<int64_t>>& counts, size_t m) {
  std::vector<Term> expected;
  for (size_t from = 0; from < counts.size(); ++from) {
    int64_t offset = 0;
    for (size_t to = 0; to < m; ++to) offset += counts[from][to];
    for (int64_t i = 0; i < counts[from][m]; ++i)
      expected.push_back({static_cast<int32_t>(from), offset + i});
  }
  return expected;
}

}  // namespace

std::vector<std::string> verify_all_to_all(const std::vector<MemberSteps>& members,
                                           const std::vector<std::vector<int64_t>>& counts) {
  SymbolicRun run(members);
  for (size_t m = 0; m < members.size(); ++m) fill(run, m, Buffer::kInput);
  if (!run.execute()) return run.problems();
  for (size_t m = 0; m < members.size(); ++m) {
    const std::vector<Cell>& output = run.memory(m)[static_cast<size_t>(Buffer::kOutput)];
    const std::vector<Term> expected = expected_exchange(counts, m);
    if (output.size() != expected.size())
      run.problem("member {} has {} units instead of {}", m, output.size(), expected.size());
    for (size_t i = 0; i < std::min(output.size(), expected.size()); ++i) {
      if (output[i].num_writes != 1)
        run.problem("member {} output {} was written {} times", m, i, output[i].num_writes);
      if (output[i].sum != std::vector<Term>{expected[i]})
        run.problem("member {} output {} is not element {} of member {}", m, i, expected[i].element,
                    expected[i].member);
    }
  }
  return run.problems();
}

std::vector<std::string> verify_all_reduce(const std::vector<MemberSteps>& members, int64_t count) {
  SymbolicRun run(members);
  for (size_t m = 0; m < members.size(); ++m)
    if (static_cast<int64_t>(fill(run, m, Buffer::kOutput).size()) != count)
      run.problem("member {} does not hold {} elements", m, count);
  if (!run.problems().empty() || !run.execute()) return run.problems();
  for (size_t m = 0; m < members.size(); ++m)
    for (int64_t i = 0; i < count; ++i) {
      std::vector<Term> expected;
      for (size_t from = 0; from < members.size(); ++from)
        expected.push_back({static_cast<int32_t>(from), i});
      if (run.memory(m)[static_cast<size_t>(Buffer::kOutput)][i].sum != expected)
        run.problem("member {} element {} is not the sum in ascending order", m, i);
    }
  return run.problems();
}

}  // namespace piper::collective
