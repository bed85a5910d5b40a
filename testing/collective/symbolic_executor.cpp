#include <fmt/core.h>
#include <testing/collective/symbolic_executor.h>

#include <algorithm>

namespace piper::collective {
namespace {

int64_t size_of(const MemberSteps& member, Buffer buffer) {
  switch (buffer) {
    case Buffer::kInput:
      return member.input_count;
    case Buffer::kOutput:
      return member.output_count;
    case Buffer::kScratch:
      return member.scratch_count;
  }
  return 0;
}

bool is_message(StepKind kind) { return kind == StepKind::kSend || kind == StepKind::kReceive; }

Block row_of(const Block& block, int64_t row, int64_t row_count) {
  return {block.buffer, block.offset + row * row_count, row_count};
}

}  // namespace

SymbolicExecutor::SymbolicExecutor(const std::vector<MemberSteps>& members, bool in_place)
    : members_(members),
      memory_(members.size()),
      state_(members.size()),
      sums_(static_cast<int64_t>(members.size())) {
  for (size_t m = 0; in_place && m < members.size(); ++m)
    memory(m, Buffer::kOutput).write(0, {{members[m].output_count, static_cast<int32_t>(m), 0}});
}

void SymbolicExecutor::problem(std::string text) {
  if (problems_.size() < kMaxProblems) problems_.push_back(std::move(text));
}

bool SymbolicExecutor::execute() {
  for (size_t m = 0; m < members_.size(); ++m) check_list(m);
  if (!problems_.empty()) return false;
  for (size_t m = 0; m < members_.size(); ++m)
    for (const std::string& race : races(members_[m]))
      problem(fmt::format("member {}: {}", m, race));
  match_messages();
  for (size_t m = 0; m < members_.size(); ++m) connect(m);
  for (size_t m = 0; m < members_.size(); ++m)
    for (size_t s = 0; s < members_[m].steps.size(); ++s) {
      if (state_[m].unmet[s] == 0) start(m, static_cast<int32_t>(s));
      while (!ready_.empty()) {
        const auto [member, step] = ready_.back();
        ready_.pop_back();
        start(member, step);
      }
    }
  check_finished();
  return problems_.empty();
}

void SymbolicExecutor::check_list(size_t m) {
  for (size_t s = 0; s < members_[m].steps.size(); ++s) {
    for (const int32_t before : members_[m].steps[s].after)
      if (before < 0 || before >= static_cast<int32_t>(s))
        problem(fmt::format("member {} step {} waits for step {}", m, s, before));
    check_step(m, s);
  }
}

void SymbolicExecutor::check_step(size_t m, size_t s) {
  const MemberSteps& member = members_[m];
  const Step& step = member.steps[s];
  if (has_source(step.kind)) check_block(m, s, step.source);
  if (has_target(step.kind)) check_block(m, s, step.target);
  if (has_target(step.kind) && step.target.buffer == Buffer::kInput && step.target.count > 0)
    problem(fmt::format("member {} step {} writes the input", m, s));
  if (is_message(step.kind)) {
    if (step.peer < 0 || step.peer >= static_cast<int32_t>(members_.size()))
      problem(fmt::format("member {} step {} has no member {} to speak to", m, s, step.peer));
  } else if (!moves_rows(step.kind)) {
    if (step.source.count != step.target.count)
      problem(fmt::format("member {} step {} joins {} and {} units", m, s, step.source.count,
                          step.target.count));
  } else if (step.first_row < 0 || step.num_rows < 0 ||
             static_cast<size_t>(step.first_row) + static_cast<size_t>(step.num_rows) >
                 member.row_pairs.size()) {
    problem(fmt::format("member {} step {} names rows beyond the list of pairs", m, s));
  } else {
    for (int32_t r = step.first_row; r < step.first_row + step.num_rows; ++r) {
      const RowPair& pair = member.row_pairs[r];
      if (pair.from < 0 || (pair.from + 1) * member.row_count > step.source.count || pair.to < 0 ||
          (pair.to + 1) * member.row_count > step.target.count)
        problem(fmt::format("member {} step {} moves row {} to row {} beyond its blocks", m, s,
                            pair.from, pair.to));
    }
  }
}

void SymbolicExecutor::check_block(size_t m, size_t s, const Block& block) {
  const int64_t size = size_of(members_[m], block.buffer);
  if (block.offset < 0 || block.count < 0 || block.count > size ||
      block.offset > size - block.count)
    problem(fmt::format("member {} step {} leaves its buffer: [{}, {}) of {}", m, s, block.offset,
                        block.offset + block.count, size));
}

// Sends are put down at their receivers, which then look for the receive of each.
void SymbolicExecutor::match_messages() {
  std::vector<std::vector<std::array<int64_t, 3>>> sent(members_.size());  // from, part, step
  for (size_t m = 0; m < members_.size(); ++m) {
    const std::vector<Step>& steps = members_[m].steps;
    state_[m].partner.assign(steps.size(), -1);
    for (size_t s = 0; s < steps.size(); ++s)
      if (steps[s].kind == StepKind::kSend)
        sent[steps[s].peer].push_back(
            {static_cast<int64_t>(m), steps[s].part, static_cast<int64_t>(s)});
  }
  for (size_t m = 0; m < members_.size(); ++m) {
    match_receives(m, sent[m]);
    sent[m] = {};
  }
}

void SymbolicExecutor::match_receives(size_t m, std::vector<std::array<int64_t, 3>>& sent) {
  const std::vector<Step>& steps = members_[m].steps;
  std::vector<std::array<int64_t, 3>> received;
  for (size_t s = 0; s < steps.size(); ++s)
    if (steps[s].kind == StepKind::kReceive)
      received.push_back({steps[s].peer, steps[s].part, static_cast<int64_t>(s)});
  const auto same = [](const auto& a, const auto& b) { return a[0] == b[0] && a[1] == b[1]; };
  for (auto* list : {&sent, &received}) {
    std::sort(list->begin(), list->end());
    const auto again = std::adjacent_find(list->begin(), list->end(), same);
    if (again != list->end())
      problem(
          fmt::format("member {} and member {} repeat message {}", (*again)[0], m, (*again)[1]));
  }
  for (size_t i = 0, j = 0; i < sent.size() && j < received.size();) {
    if (!same(sent[i], received[j])) {
      sent[i] < received[j] ? ++i : ++j;
      continue;
    }
    const auto [from, part, send] = sent[i++];
    const int64_t receive = received[j++][2];
    const int64_t there = members_[from].steps[send].source.count;
    if (there != steps[receive].target.count)
      problem(fmt::format("member {} sends {} units, member {} receives {}", from, there, m,
                          steps[receive].target.count));
    state_[from].partner[send] = static_cast<int32_t>(receive);
    state_[m].partner[receive] = static_cast<int32_t>(send);
  }
}

void SymbolicExecutor::connect(size_t m) {
  const std::vector<Step>& steps = members_[m].steps;
  State& state = state_[m];
  state.unmet.assign(steps.size(), 0);
  state.first_dependent.assign(steps.size() + 1, 0);
  for (size_t s = 0; s < steps.size(); ++s) {
    state.unmet[s] = static_cast<int32_t>(steps[s].after.size());
    for (const int32_t before : steps[s].after) ++state.first_dependent[before + 1];
  }
  for (size_t s = 0; s < steps.size(); ++s)
    state.first_dependent[s + 1] += state.first_dependent[s];
  state.dependents.resize(state.first_dependent.back());
  std::vector<int32_t> next(state.first_dependent.begin(), state.first_dependent.end() - 1);
  for (size_t s = 0; s < steps.size(); ++s)
    for (const int32_t before : steps[s].after)
      state.dependents[next[before]++] = static_cast<int32_t>(s);
}

void SymbolicExecutor::start(size_t m, int32_t s) {
  const Step& step = members_[m].steps[s];
  state_[m].unmet[s] = -1;
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kReceive: {
      const int32_t partner = state_[m].partner[s];
      if (partner < 0 || state_[step.peer].unmet[partner] != -1) return;
      const Step& other = members_[step.peer].steps[partner];
      const auto peer = static_cast<size_t>(step.peer);
      if (step.kind == StepKind::kSend)
        transfer(m, step.source, peer, other.target, false);
      else
        transfer(peer, other.source, m, step.target, false);
      finish(m, s);
      finish(peer, partner);
      return;
    }
    case StepKind::kCopy:
    case StepKind::kAdd:
      transfer(m, step.source, m, step.target, step.kind == StepKind::kAdd);
      return finish(m, s);
    case StepKind::kCopyRows:
    case StepKind::kAddRows:
      move_rows(m, step);
      return finish(m, s);
  }
}

void SymbolicExecutor::finish(size_t m, int32_t s) {
  ++num_finished_;
  State& state = state_[m];
  state.unmet[s] = -2;
  for (int32_t i = state.first_dependent[s]; i < state.first_dependent[s + 1]; ++i)
    if (--state.unmet[state.dependents[i]] == 0)
      ready_.emplace_back(static_cast<int32_t>(m), state.dependents[i]);
}

std::vector<Piece> SymbolicExecutor::read(size_t member, const Block& block) {
  if (block.buffer == Buffer::kInput)
    return {{block.count, static_cast<int32_t>(member), block.offset}};
  return memory(member, block.buffer).read(block.offset, block.count);
}

// Where one list of pieces ends within a piece of the other, that one is cut.
void SymbolicExecutor::transfer(size_t from, const Block& source, size_t to, const Block& target,
                                bool add) {
  if (source.count == 0 || source.count != target.count) return;
  std::vector<Piece> pieces = read(from, source);
  std::vector<Piece> sums;
  if (add) {
    std::vector<Piece> there = read(to, target);
    for (size_t i = 0, j = 0; i < pieces.size() && j < there.size();) {
      Piece a = pieces[i], b = there[j];
      a.count = b.count = std::min(a.count, b.count);
      sums.push_back(a.label < 0 || b.label < 0 ? Piece{a.count} : sums_.add(a, b));
      for (auto [list, index] : {std::pair{&pieces, &i}, std::pair{&there, &j}}) {
        Piece& rest = (*list)[*index];
        rest.count -= a.count;
        rest.first += a.count;
        if (rest.count == 0) ++*index;
      }
    }
    pieces = std::move(sums);
  }
  if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.label < 0; }))
    problem(fmt::format("member {} reads what nobody wrote", from));
  memory(to, target.buffer).write(target.offset, pieces);
}

void SymbolicExecutor::move_rows(size_t m, const Step& step) {
  const MemberSteps& member = members_[m];
  for (int32_t r = step.first_row; r < step.first_row + step.num_rows; ++r) {
    const RowPair& pair = member.row_pairs[r];
    transfer(m, row_of(step.source, pair.from, member.row_count), m,
             row_of(step.target, pair.to, member.row_count), step.kind == StepKind::kAddRows);
  }
}

void SymbolicExecutor::check_finished() {
  int64_t num_steps = 0;
  for (const MemberSteps& member : members_) num_steps += static_cast<int64_t>(member.steps.size());
  if (num_finished_ == num_steps) return;
  for (size_t m = 0; m < members_.size(); ++m)
    for (size_t s = 0; s < members_[m].steps.size(); ++s)
      if (state_[m].unmet[s] != -2) problem(fmt::format("member {} step {} never finishes", m, s));
}

}  // namespace piper::collective
