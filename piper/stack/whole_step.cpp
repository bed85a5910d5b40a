#include <piper/base/error.h>
#include <piper/cost/host_copies.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/transfers.h>
#include <piper/stack/step_writer.h>
#include <piper/stack/whole_step.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace piper::stack {
namespace {

using graph::Phase;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;
using schedule::Action;
using schedule::Item;
using schedule::Segment;
using schedule::SegmentKind;
using strategy::Axis;
using strategy::Strategy;

// What all ranks of a stage do: its items, and the pieces of its actions.
class StagePlan {
 public:
  StagePlan(const StepParts& parts, const model::Model& model, const Strategy& s,
            EveryMicroBatch every, int64_t stage)
      : parts_(parts), model_(model), s_(s), every_(every), stage_(stage) {
    const schedule::Placing placing{.pp = s.mesh.pp, .vpp = s.mesh.vpp, .schedule = s.schedule};
    actions_ = schedule::actions(s.schedule, s.mesh.pp, stage, s.num_micro_batches, s.mesh.vpp);
    items = schedule::insert_transfers(actions_, placing, stage);
    const auto chunks = static_cast<size_t>(s.mesh.vpp);
    first_.resize(chunks);
    last_.resize(chunks);
    std::vector<char> seen(chunks);
    for (const Action& action : actions_) {
      const auto chunk = static_cast<size_t>(action.chunk);
      if (action.kind == Action::Kind::kForward && !seen[chunk])
        first_[chunk] = action, seen[chunk] = 1;
      if (schedule::makes_weight_gradients(action.kind)) last_[chunk] = action;
    }
    if (strategy::offloads_activations(s.offload))
      copies_ = cost::host_copies(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, stage);
  }

  std::vector<Item> items;

  int64_t virtual_stage(const Action& action) const {
    return schedule::virtual_stage(s_.schedule, s_.mesh.pp, stage_, action.chunk);
  }
  const ChunkPart& chunk(const Action& action) const {
    return parts_.chunks[static_cast<size_t>(virtual_stage(action))];
  }

  // Valid as long as this.
  const std::vector<Piece>& pieces(const Action& action, bool is_paired) {
    const auto chunk = static_cast<size_t>(action.chunk);
    const ActionKind kind{.phase = phase_of(action.kind),
                          .gathers = action == first_[chunk],
                          .reduces = action == last_[chunk],
                          .is_paired = is_paired};
    const auto [found, is_new] =
        pieces_.try_emplace({action.chunk, kind.phase, kind.gathers, kind.reduces, kind.is_paired});
    if (is_new)
      found->second = pieces_of(this->chunk(action), parts_.stages[static_cast<size_t>(stage_)],
                                parts_, model_, every_, kind);
    return found->second;
  }

  // Null where nothing leaves for the host.
  const cost::HostCopies* copies() const { return copies_ ? &*copies_ : nullptr; }

 private:
  using Key = std::tuple<int32_t, Phase, bool, bool, bool>;
  const StepParts& parts_;
  const model::Model& model_;
  const Strategy& s_;
  EveryMicroBatch every_;
  int64_t stage_;
  std::vector<Action> actions_, first_, last_;  // the latter two by chunk
  std::optional<cost::HostCopies> copies_;
  std::map<Key, std::vector<Piece>> pieces_;
};

// One rank's tasks.
class RankTasks {
 public:
  RankTasks(StepWriter& writer, StagePlan& plan, Rank rank)
      : writer_(writer),
        plan_(plan),
        part_(writer.parts().stages[static_cast<size_t>(writer.layout().stage(rank))]),
        out_(writer, rank),
        kept_(
            static_cast<size_t>(writer.strategy().mesh.vpp * writer.strategy().num_micro_batches)),
        arrived_(2 * kept_.size(), TaskId::none()) {}

  void write() {
    const std::vector<Item>& items = plan_.items;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].kind != Item::Kind::kCompute) {
        one(items[i]);
        continue;
      }
      if (items[i].action.pairs_with_next) {
        i = pair(i);
        ++place_;
      } else {
        one(items[i]);
      }
      bring_back();
      ++place_;
    }
    end_of_step();
  }

 private:
  struct Kept {
    SlotId slot = SlotId::none();
    TaskId out = TaskId::none(), back = TaskId::none();  // copies to the host and from it
  };
  // An action being written.
  struct Cursor {
    Action action;
    const std::vector<Piece>* pieces = nullptr;
    size_t next = 0;
    std::vector<TaskId> posts;         // by number
    graph::ShortList<TaskId> waits;    // of what is computed (posted) next
    TaskId computed = TaskId::none();  // last of this action
    bool is_begun = false;
    bool done() const { return next == pieces->size(); }
  };

  size_t index(const Action& action) const {
    return static_cast<size_t>(action.chunk * writer_.strategy().num_micro_batches +
                               action.micro_batch);
  }
  TaskId& arrived(const Action& action) {
    return arrived_[2 * index(action) + (action.kind == Action::Kind::kForward ? 0 : 1)];
  }

  void one(const Item& item) {
    switch (item.kind) {
      case Item::Kind::kReceive:
        arrived(item.action) = out_.receive(item.action);
        return;
      case Item::Kind::kSend:
        out_.send(item.action, out_.computed());
        return;
      case Item::Kind::kCompute: {
        Cursor cursor = begin(item.action);
        while (!cursor.done()) advance(cursor);
        end(cursor);
        return;
      }
    }
  }

  // A forward and the backward behind it, turn by turn; what stands between them in the list
  // follows the forward. The backward's rows go on their way first, so that from then on one's rows
  // travel while the other computes.
  size_t pair(size_t first) {
    const std::vector<Item>& items = plan_.items;
    size_t second = first + 1;
    while (items[second].kind != Item::Kind::kCompute) ++second;
    Cursor cursors[2] = {begin(items[first].action), begin(items[second].action, true)};
    bool is_ended[2] = {false, false};
    const bool turns = std::ranges::any_of(
        *cursors[1].pieces, [](const Piece& p) { return p.kind == Piece::Kind::kTurn; });
    for (int turn = turns ? 1 : 0; !is_ended[0] || !is_ended[1]; turn = 1 - turn) {
      Cursor& cursor = cursors[turn];
      if (is_ended[turn]) continue;
      while (!cursor.done() && advance(cursor)) {
      }
      if (!cursor.done()) continue;
      end(cursor);
      is_ended[turn] = true;
      if (turn == 0)
        for (size_t i = first + 1; i < second; ++i) one_behind(items[i], cursor);
    }
    // Its own send stands behind the second.
    return second;
  }
  void one_behind(const Item& item, const Cursor& cursor) {
    if (item.kind == Item::Kind::kSend)
      out_.send(item.action, cursor.computed);
    else
      one(item);
  }

  Cursor begin(const Action& action, bool is_paired = false) {
    Cursor cursor{.action = action, .pieces = &plan_.pieces(action, is_paired)};
    cursor.waits.push_back(arrived(action));
    const cost::HostCopies* copies = plan_.copies();
    if (copies != nullptr && action.kind == Action::Kind::kForward)
      if (const int32_t before = copies->starts_behind[index(action)]; before >= 0)
        cursor.waits.push_back(kept_[static_cast<size_t>(before)].out);
    if (schedule::makes_input_gradient(action.kind))
      cursor.waits.push_back(kept_[index(action)].back);
    return cursor;
  }

  // The next piece; false at a turn.
  bool advance(Cursor& c) {
    const Piece& piece = (*c.pieces)[c.next++];
    out_.begin(piece.phase, c.action.micro_batch);
    switch (piece.kind) {
      case Piece::Kind::kCompute: {
        RankWriter::Slots slots;
        if (!c.is_begun && c.action.kind == Action::Kind::kForward)
          slots.writes = kept_[index(c.action)].slot =
              out_.slot(plan_.chunk(c.action).kept_bytes, c.action);
        if (c.next == last_compute(c) && schedule::makes_weight_gradients(c.action.kind))
          slots.frees = kept_[index(c.action)].slot;
        if (slots.frees.valid() && slots.frees == slots.writes) slots.frees = SlotId::none();
        const bool works = graph::is_backward(piece.phase);
        c.computed =
            out_.compute(piece.segment, piece.seconds,
                         works ? part_.bytes.working + part_.bytes.exchange : 0, c.waits, slots);
        c.is_begun = true;
        c.waits = {};
        return true;
      }
      case Piece::Kind::kPost: {
        graph::ShortList<TaskId> after = c.waits;
        after.push_back(c.computed.valid() ? c.computed : out_.computed());
        const bool is_state = piece.task == TaskKind::kStateCollective;
        // Updated weights wait for nobody.
        if (is_state && piece.phase == Phase::kForward && !writer_.every().gathers) after = {};
        if (is_state) after.push_back(last_state_);
        const TaskId task = out_.post(piece, after);
        if (is_state) last_state_ = task;
        if (c.posts.size() <= static_cast<size_t>(piece.post))
          c.posts.resize(static_cast<size_t>(piece.post) + 1);
        c.posts[static_cast<size_t>(piece.post)] = task;
        return true;
      }
      case Piece::Kind::kWait:
        c.waits.push_back(c.posts[static_cast<size_t>(piece.post)]);
        return true;
      case Piece::Kind::kTurn:
        return false;
    }
    return true;
  }

  // Place behind the last computing piece.
  static size_t last_compute(const Cursor& c) {
    size_t i = c.pieces->size();
    while (i > 0 && (*c.pieces)[i - 1].kind != Piece::Kind::kCompute) --i;
    return i;
  }

  void end(Cursor& c) {
    if (!c.waits.empty()) {  // for collectives behind the last computing
      out_.begin(phase_of(c.action.kind), c.action.micro_batch);
      c.computed = out_.compute({SegmentKind::kMerge, -1}, 0, 0, c.waits, {});
      c.waits = {};
    }
    const cost::HostCopies* copies = plan_.copies();
    if (copies == nullptr || c.action.kind != Action::Kind::kForward ||
        !copies->is_copied[index(c.action)])
      return;
    out_.begin(Phase::kForward, c.action.micro_batch);
    Kept& kept = kept_[index(c.action)];
    kept.out =
        out_.copy(plan_.chunk(c.action).copy_seconds, {out_.computed()}, {.frees = kept.slot});
  }

  // What comes back behind the action just written.
  void bring_back() {
    const cost::HostCopies* copies = plan_.copies();
    if (copies == nullptr) return;
    const auto m = static_cast<int32_t>(writer_.strategy().num_micro_batches);
    for (; brought_ < copies->back.size() && copies->back[brought_].place == place_; ++brought_) {
      const int32_t which = copies->back[brought_].which;
      const Action action{
          .kind = Action::Kind::kBackward, .micro_batch = which % m, .chunk = which / m};
      const ChunkPart& chunk = plan_.chunk(action);
      Kept& kept = kept_[index(action)];
      out_.begin(Phase::kBackward, action.micro_batch);
      kept.slot = out_.slot(chunk.kept_bytes, action);
      kept.back = out_.copy(chunk.copy_seconds, {out_.computed(), kept.out}, {.writes = kept.slot});
    }
  }

  void end_of_step() {
    out_.begin(Phase::kUpdate, -1);
    const double shown = 1 - writer_.parts().hidden_gradients;
    const StateTraffic& t = part_.traffic;
    graph::ShortList<TaskId> reduced;
    reduced.push_back(last_state_);
    if (!writer_.every().reduces)
      for (const TaskId id : both(t, &Reduction::reduce, shown, reduced)) reduced.push_back(id);
    const TaskId summed = out_.sum_over_world(reduced);
    graph::ShortList<TaskId> after;
    after.push_back(summed);
    TaskId last = out_.compute({SegmentKind::kOptimizer, -1}, part_.update_seconds, 0, after, {});
    if (part_.optimizer_copy_seconds > 0)
      last = out_.copy(part_.optimizer_copy_seconds, {last}, {});
    graph::ShortList<TaskId> updated;
    updated.push_back(last);
    if (!writer_.every().gathers) both(t, &Reduction::gather, shown * t.gathers, updated);
  }

  // Dense, then experts, `part` of all of the stage's.
  std::vector<TaskId> both(const StateTraffic& t, cost::Moves Reduction::*what, double part,
                           const graph::ShortList<TaskId>& pending) {
    std::vector<TaskId> posted;
    graph::ShortList<TaskId> after = pending;
    after.push_back(out_.computed());
    for (const auto& [axis, reduction, kind] :
         {std::tuple{Axis::kData, &t.dense, SegmentKind::kDenseGradients},
          {Axis::kExpertData, &t.experts, SegmentKind::kExpertGradients}}) {
      const cost::Moves& all = reduction->*what;
      if (all.total() <= 0 || part <= 0) continue;
      const bool gathers = what == &Reduction::gather;
      const TaskId task = out_.post({.phase = Phase::kUpdate,
                                     .segment = {gathers ? SegmentKind::kWeights : kind, -1},
                                     .task = TaskKind::kStateCollective,
                                     .axis = axis,
                                     .moves = {part * all.latency, part * all.transfer}},
                                    after);
      posted.push_back(task);
      after = {};
      after.push_back(task);
    }
    return posted;
  }

  StepWriter& writer_;
  StagePlan& plan_;
  const StagePart& part_;
  RankWriter out_;
  std::vector<Kept> kept_;              // by chunk and micro-batch
  std::vector<TaskId> arrived_;         // likewise, forward and backward
  int32_t place_ = 0;                   // of the action being written, in the stage's list
  size_t brought_ = 0;                  // copies back that are posted
  TaskId last_state_ = TaskId::none();  // gathers and reductions follow each other
};

}  // namespace

WholeStep write_whole_step(Estimator& estimator, const Strategy& s, const std::vector<Rank>& ranks,
                           double imbalance) {
  const StepParts parts = estimator.parts(s, imbalance);
  std::vector<Rank> written = ranks;
  if (written.empty())
    for (int64_t rank = 0; rank < s.mesh.world(); ++rank) written.push_back(Rank(rank));
  std::ranges::sort(written);
  StepWriter writer(estimator, s, parts, written);
  std::map<int64_t, StagePlan> plans;
  for (const Rank rank : written) {
    const int64_t stage = writer.layout().stage(rank);
    const auto found =
        plans.try_emplace(stage, parts, estimator.model(), s, writer.every(), stage).first;
    RankTasks(writer, found->second, rank).write();
  }
  return writer.take();
}

double whole_step_tasks(const Strategy& s, const model::Model& model, int64_t num_ranks) {
  double layer = 4;  // two blocks, forward and backward
  if (s.mesh.tp > 1) layer += 2;
  if (s.mesh.cp > 1) layer += 4;
  if (s.mesh.ep > 1) layer += 4;
  if (s.mesh.etp > 1) layer += 2;
  if (strategy::splits_backward(s.schedule)) layer += 2;
  if (s.zero == 3) layer += 8;
  const double layers = static_cast<double>(model.num_layers()) / static_cast<double>(s.mesh.pp);
  const double chunk = s.mesh.pp > 1 ? 6 : 0;
  return static_cast<double>(num_ranks) * static_cast<double>(s.num_micro_batches) *
         (layer * layers + chunk * static_cast<double>(s.mesh.vpp));
}

}  // namespace piper::stack
