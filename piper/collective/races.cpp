#include <fmt/core.h>
#include <piper/collective/races.h>

#include <algorithm>
#include <set>

namespace piper::collective {
namespace {

struct Access {
  int64_t begin = 0, end = 0;
  int32_t step = 0;
  bool writes = false;
};

// Whether one step comes after another, by a search back from the later one.
class Order {
 public:
  explicit Order(const std::vector<Step>& steps) : steps_(steps), seen_(steps.size(), 0) {}

  bool ordered(int32_t a, int32_t b) {
    const auto [early, late] = std::minmax(a, b);
    ++search_;
    open_.assign(1, late);
    while (!open_.empty()) {
      const int32_t step = open_.back();
      open_.pop_back();
      for (const int32_t before : steps_[step].after) {
        if (before == early) return true;
        if (before < early || seen_[before] == search_) continue;
        seen_[before] = search_;
        open_.push_back(before);
      }
    }
    return false;
  }

 private:
  const std::vector<Step>& steps_;
  std::vector<int32_t> seen_;  // by step: the last search that met it
  std::vector<int32_t> open_;
  int32_t search_ = 0;
};

using Accesses = std::vector<Access>;

void add(Accesses& accesses, int64_t begin, int64_t count, int32_t step, bool writes) {
  if (count == 0) return;
  if (!accesses.empty() && accesses.back().step == step && accesses.back().writes == writes &&
      accesses.back().end == begin)
    accesses.back().end += count;  // rows that follow each other
  else
    accesses.push_back({begin, begin + count, step, writes});
}

// What the steps do with one buffer.
Accesses accesses_to(Buffer buffer, const MemberSteps& member) {
  Accesses found;
  const auto touch = [&](const Block& block, int32_t s, bool writes) {
    const Step& step = member.steps[s];
    if (block.buffer != buffer) return;
    if (!moves_rows(step.kind)) return add(found, block.offset, block.count, s, writes);
    for (int32_t r = step.first_row; r < step.first_row + step.num_rows; ++r) {
      const RowPair& pair = member.row_pairs[r];
      const int64_t row = writes ? pair.to : pair.from;
      add(found, block.offset + row * member.row_count, member.row_count, s, writes);
    }
  };
  for (size_t s = 0; s < member.steps.size(); ++s) {
    const Step& step = member.steps[s];
    if (has_source(step.kind)) touch(step.source, static_cast<int32_t>(s), false);
    if (has_target(step.kind)) touch(step.target, static_cast<int32_t>(s), true);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Access& a, const Access& b) { return a.begin < b.begin; });
  return found;
}

// Those of `open` that reach beyond `begin` stay; calls meet(access) for each.
template <class Meet>
void sweep(Accesses& open, int64_t begin, const Meet& meet) {
  std::erase_if(open, [&](const Access& access) { return access.end <= begin; });
  for (const Access& access : open) meet(access);
}

}  // namespace

bool moves_rows(StepKind kind) { return kind == StepKind::kCopyRows || kind == StepKind::kAddRows; }
bool has_source(StepKind kind) { return kind != StepKind::kReceive; }
bool has_target(StepKind kind) { return kind != StepKind::kSend; }

std::vector<std::string> races(const MemberSteps& member) {
  Order order(member.steps);
  std::set<std::pair<int32_t, int32_t>> found;
  for (const Buffer buffer : {Buffer::kOutput, Buffer::kScratch}) {
    Accesses reads, writes;
    for (const Access& access : accesses_to(buffer, member)) {
      const auto meet = [&](const Access& other) {
        if (other.step != access.step && !order.ordered(other.step, access.step))
          found.insert(std::minmax(other.step, access.step));
      };
      sweep(writes, access.begin, meet);
      if (access.writes) sweep(reads, access.begin, meet);
      (access.writes ? writes : reads).push_back(access);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [a, b] : found) lines.push_back(fmt::format("steps {} and {} race", a, b));
  return lines;
}

}  // namespace piper::collective
