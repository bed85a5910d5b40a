#include <piper/base/error.h>
#include <piper/collective/row_runs.h>
#include <piper/collective/staged_exchange.h>

#include <unordered_map>

namespace piper::collective {
namespace {

class StagedWriter {
 public:
  StagedWriter(int64_t member, int64_t num_members, const CountOf& count)
      : member_(member), n_(num_members), count_(count), steps_(member, num_members, count) {}

  MemberSteps write(const StagedExchange& exchange) {
    const size_t num = exchange.stages.size();
    const size_t beside = exchange.phase_one == PhaseOne::kUnderTwo || num == 0 ? 0 : num - 1;
    for (size_t i = 0; i < num; ++i) {
      const bool inside_waits = i == beside && i > 0;
      const int32_t all =
          exchange.stages[i].waits_for_all || inside_waits ? steps_.meet(of_stage_) : -1;
      of_stage_.clear();
      part_ = static_cast<uint32_t>(2 * i);
      steps_.set_round(static_cast<int64_t>(i));
      execute(exchange.stages[i], exchange.stages[i].waits_for_all ? all : -1);
      if (i == beside) execute_inside(exchange.inside, inside_waits ? all : -1);
    }
    if (num == 0) execute_inside(exchange.inside, -1);
    deliver();
    return steps_.take();
  }

 private:
  // Parts: stage i has 2 i, phase I beside it 2 i + 1.
  void execute_inside(const Stage& stage, int32_t after) {
    std::vector<int32_t> before = std::move(of_stage_);
    ++part_;
    execute(stage, after);
    of_stage_ = std::move(before);  // nothing waits for phase I
  }

  void execute(const Stage& stage, int32_t after) {
    arrived_.clear();
    for (const Bundle& bundle : stage.in)
      if (bundle.peer != member_) receive(bundle, stage.always_unpacks, after);
    for (const Bundle& bundle : stage.out) send(bundle, stage, after);
    for (const auto& [key, place] : arrived_) places_[key] = place;
  }

  int64_t key(int64_t source, int64_t target) const { return source * n_ + target; }

  Place place(int64_t source, int64_t target) const {
    const auto found = places_.find(key(source, target));
    if (found != places_.end()) return found->second;
    PIPER_CHECK(source == member_ || count_(source, target) == 0, "a row that never came");
    return {source == member_ ? steps_.sent(target) : Block{}, -1};
  }

  int64_t total(const Bundle& bundle) const {
    int64_t sum = 0;
    for (const int32_t target : bundle.targets)
      for (const int32_t source : bundle.sources) sum += count_(source, target);
    return sum;
  }

  // Where all rows of a bundle lie in the output; a count of -1 when they do not follow each other.
  Block in_output(const Bundle& bundle) const {
    if (bundle.targets != std::vector<int32_t>{static_cast<int32_t>(member_)}) return {.count = -1};
    std::vector<Run> runs;
    for (const int32_t source : bundle.sources) append(runs, {steps_.received(source), -1});
    if (runs.size() > 1) return {.count = -1};
    return runs.empty() ? Block{} : runs.front().block;
  }

  void receive(const Bundle& bundle, bool always_unpacks, int32_t after) {
    Block block = always_unpacks ? Block{.count = -1} : in_output(bundle);
    if (block.count < 0) block = steps_.scratch(total(bundle));
    After waits;
    wait_for(waits, after);
    const int32_t step = steps_.receive(bundle.peer, part_, block, waits);
    of_stage_.push_back(step);
    arrive(bundle, block, step);
  }

  void arrive(const Bundle& bundle, Block block, int32_t step) {
    for (const int32_t target : bundle.targets)
      for (const int32_t source : bundle.sources) {
        block.count = count_(source, target);
        if (block.count > 0) arrived_.emplace_back(key(source, target), Place{block, step});
        block.offset += block.count;
      }
  }

  void send(const Bundle& bundle, const Stage& stage, int32_t after) {
    const bool is_own = bundle.peer == member_;
    if (is_own && !stage.always_packs && !stage.always_unpacks) return;
    std::vector<Run> runs;
    for (const int32_t target : bundle.targets)
      for (const int32_t source : bundle.sources) append(runs, place(source, target));
    for (Run& run : runs) add_once(run.after, after);
    if (runs.size() > 1 || stage.always_packs) runs = {packed(runs)};
    if (runs.empty() || runs.front().block.count == 0) return;
    const auto& [block, waits] = runs.front();
    if (!is_own) {
      of_stage_.push_back(steps_.send(bundle.peer, part_, block, waits));
      return;
    }
    const Block target = steps_.scratch(block.count);
    of_stage_.push_back(steps_.copy(block, target, waits));
    arrive(bundle, target, of_stage_.back());
  }

  Run packed(const std::vector<Run>& runs) {
    int64_t sum = 0;
    for (const Run& run : runs) sum += run.block.count;
    Run result{steps_.scratch(sum), {}};
    Block to = result.block;
    for (const Run& run : runs) {
      to.count = run.block.count;
      wait_for(result.after, steps_.copy(run.block, to, run.after));
      to.offset += to.count;
    }
    return result;
  }

  // What is for this member and not yet in the output.
  void deliver() {
    OutputCopies copies;
    for (int64_t source = 0; source < n_; ++source)
      if (steps_.received(source).count > 0)
        copies.add(place(source, member_), steps_.received(source));
    copies.write(steps_);
  }

  int64_t member_, n_;
  const CountOf& count_;
  StepBuilder steps_;
  std::unordered_map<int64_t, Place> places_;  // of rows that are not where they were at the start
  std::vector<std::pair<int64_t, Place>> arrived_;  // in the stage being written
  std::vector<int32_t> of_stage_;                   // messages of it
  uint32_t part_ = 0;
};

}  // namespace

MemberSteps staged_exchange(int64_t member, int64_t num_members, const CountOf& count,
                            const StagedExchange& exchange) {
  return StagedWriter(member, num_members, count).write(exchange);
}

Stage inside_unit(int64_t member, const Units& units) {
  Stage stage;
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  for (const int32_t from : unit_sources(member, units)) stage.in.push_back({from, {from}, own});
  for (const int32_t to : unit_targets(member, units)) stage.out.push_back({to, own, {to}});
  return stage;
}

}  // namespace piper::collective
