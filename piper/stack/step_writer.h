// What whole_step.cpp writes with: tables of all ranks (StepWriter) and one rank's tasks
// (RankWriter). Not for others.
#pragma once

#include <piper/schedule/transfers.h>
#include <piper/stack/pieces.h>
#include <piper/stack/whole_step.h>
#include <piper/strategy/rank_layout.h>

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace piper::stack {

// Groups, operations, patterns of ports and prices. All that it is given outlives it.
class StepWriter {
 public:
  StepWriter(Estimator& estimator, const strategy::Strategy& strategy, const StepParts& parts,
             const std::vector<Rank>& written);

  const StepParts& parts() const { return parts_; }
  const strategy::Strategy& strategy() const { return strategy_; }
  const strategy::RankLayout& layout() const { return layout_; }
  // With ZeRO 2 and 3 states travel with every micro-batch, unless the stack keeps them whole in a
  // pipeline.
  EveryMicroBatch every() const { return every_; }
  WholeStep take();

  graph::Graph& graph() { return out_.step.graph; }
  graph::SegmentId id_of(const schedule::Segment& segment);
  graph::SlotId add_slot(Rank rank, int32_t micro_batch, double bytes);
  graph::TaskId add(const graph::NewTask& task, double seconds, double transient_bytes = 0);

  // A group and the operations that it has had: the n-th of one member is the n-th of the others.
  struct Group {
    graph::GroupId id;
    std::vector<Rank> ranks;
    int32_t pattern = -1;
    std::vector<std::pair<cost::LevelNeeds, int32_t>>
        own_patterns;  // of operations with needs of their own
    std::vector<graph::OperationId> operations;
  };
  Group& group(strategy::Axis axis, Rank rank);
  // `needs`: of this operation; null: as the stack prices all of the group's.
  graph::OperationId nth(Group& group, size_t n, const cost::Moves& moves,
                         const cost::LevelNeeds* needs);

  // From the virtual stage to its neighbour, between the same members.
  graph::OperationId message(Rank from, Rank to, int64_t boundary, bool is_gradient,
                             int32_t micro_batch);

 private:
  int32_t new_pattern(const cost::Transfer& transfer);
  int32_t pattern_of(strategy::Axis axis, Rank rank, const std::vector<Rank>& members);
  int32_t pattern_of(Group& group, const cost::LevelNeeds& needs);
  graph::OperationId new_operation(int32_t pattern, const cost::Moves& moves);

  const Estimator& estimator_;
  const strategy::Strategy& strategy_;
  const StepParts& parts_;
  strategy::RankLayout layout_;
  EveryMicroBatch every_;
  cost::Ports ports_;
  int32_t first_host_port_;
  WholeStep out_;
  std::map<std::pair<schedule::SegmentKind, int32_t>, graph::SegmentId> segments_;
  std::map<std::tuple<strategy::Axis, int64_t, int64_t, int64_t>, Group> groups_;
  std::unordered_map<uint64_t, int32_t> message_patterns_;  // by from and to
  std::vector<int32_t> messages_;                           // operations; -1: not yet
};

class RankWriter {
 public:
  RankWriter(StepWriter& step, Rank rank);

  struct Slots {
    graph::SlotId writes = graph::SlotId::none(), frees = graph::SlotId::none();
  };
  using After = graph::ShortList<graph::TaskId>;

  // What follows belongs to.
  void begin(graph::Phase phase, int32_t micro_batch);
  graph::TaskId computed() const { return computed_; }  // the last

  graph::SlotId slot(double bytes, const schedule::Action& action);
  graph::TaskId compute(const schedule::Segment& segment, double seconds, double transient_bytes,
                        const After& after, const Slots& slots);
  graph::TaskId post(const Piece& piece, const After& after);
  graph::TaskId copy(double seconds, const After& after, const Slots& slots);
  graph::TaskId sum_over_world(const After& after);
  graph::TaskId receive(const schedule::Action& action);
  // Behind `after`; what does not hide of the message keeps the rank from computing.
  void send(const schedule::Action& action, graph::TaskId after);

 private:
  graph::TaskId collective(graph::TaskKind kind, const schedule::Segment& segment,
                           strategy::Axis axis, const cost::Moves& moves, const After& after,
                           const Slots& slots, const cost::LevelNeeds* needs = nullptr);
  void begin_message(const schedule::Action& action);

  StepWriter& step_;
  Rank rank_;
  strategy::Coordinates at_;
  schedule::Placing placing_;
  graph::Phase phase_ = graph::Phase::kForward;
  int32_t micro_batch_ = -1;
  graph::TaskId computed_ = graph::TaskId::none();
  struct Posted {
    StepWriter::Group* group = nullptr;
    size_t num = 0;
  };
  std::array<Posted, strategy::kNumAxes> posted_;
};

}  // namespace piper::stack
