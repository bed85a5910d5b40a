// An event-driven simulation. Events are ends of tasks and operations, and bytes that start to
// move; all of one instant are taken together: first what ends gives back memory, cores and links,
// then operations whose share of a link has changed are predicted a new end, then the ranks
// concerned start what they now can (in the order of ranks), then free cores go to those who have
// waited longest. Every task is looked at when its stream reaches it and each time something of its
// rank ends while it is at the head: a handful of times, so the cost is linear in the tasks.
#include <piper/base/error.h>
#include <piper/graph/operations.h>
#include <piper/sim/network.h>
#include <piper/sim/simulate.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

namespace piper::sim {

using graph::OperationId;
using graph::Stream;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;

namespace {

enum class What : uint32_t {
  kTaskEnds,       // id: task
  kTransferMoves,  // id: operation, whose latency is over
  // id: operation; counts if the operation's end is still predicted for this instant
  kOperationEnds,
};

struct Event {
  double seconds;
  What what;
  int32_t id;
  // For a queue with the earliest on top; ties by what and id.
  bool operator<(const Event& other) const {
    if (seconds != other.seconds) return seconds > other.seconds;
    return what != other.what ? what > other.what : id > other.id;
  }
};

// Live bytes of one rank over time.
class Memory {
 public:
  void start(int64_t static_bytes) {
    samples_.clear();
    peak_ = live_ = 0;
    change(0, static_bytes);
  }
  void change(double now, int64_t bytes, bool keep = true) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    if (!keep) return;
    if (!samples_.empty() && samples_.back().seconds == now)
      samples_.back().bytes = live_;
    else
      samples_.push_back({now, live_});
  }
  int64_t peak() const { return peak_; }
  std::vector<graph::MemorySample> take() { return std::move(samples_); }

 private:
  int64_t live_ = 0, peak_ = 0;
  std::vector<graph::MemorySample> samples_;
};

// Cores of one node, and the ranks that wait for one.
struct Node {
  int64_t num_free = 0;
  int64_t num_ranks = 0;
  struct Waiting {
    Rank rank;
    double since;
  };
  std::deque<Waiting> waiting;
  std::vector<Rank> computing;
};

constexpr double kEnded = -1;

class Simulation {
 public:
  Simulation(const schedule::StepGraph& step, const cost::Prices& prices, bool keep_memory)
      : graph_(step.graph),
        prices_(prices),
        keep_memory_(keep_memory),
        operations_(step.graph),
        network_(prices.links),
        num_posted_(step.graph.num_operations()),
        ends_at_(prices.links.empty() ? 0 : step.graph.num_operations()),
        next_(step.graph.num_ranks() * graph::kNumStreams),
        computing_(step.graph.num_ranks()),
        compute_ends_at_(step.graph.num_ranks(), kEnded),
        holds_core_(step.graph.num_ranks()),
        is_touched_(step.graph.num_ranks()),
        memory_(step.graph.num_ranks()) {
    check_prices();
    timeline_.tasks.resize(graph_.tasks().size());
    const auto last_node = std::max_element(prices.node_of_rank.begin(), prices.node_of_rank.end());
    if (shares_cores()) nodes_.resize(*last_node + 1, Node{.num_free = prices.cores_per_node});
    if (shares_cores())
      for (const auto node : prices.node_of_rank) ++nodes_[static_cast<size_t>(node)].num_ranks;
  }

  graph::Timeline simulate() {
    for (int64_t rank = 0; rank < graph_.num_ranks(); ++rank)
      if (graph_.takes_part(Rank(rank))) {
        memory_[rank].start(prices_.static_bytes[rank]);
        touch(Rank(rank));
      }
    advance();
    while (!events_.empty()) {
      now_ = events_.top().seconds;
      while (!events_.empty() && events_.top().seconds == now_) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
      }
      network_.settle(now_, [&](OperationId id, double seconds) { end_at(id, seconds); });
      advance();
    }
    PIPER_CHECK(num_ended_ == graph_.tasks().size(), graph::find_deadlock(graph_));
    for (Memory& memory : memory_) {
      timeline_.peak_bytes.push_back(memory.peak());
      timeline_.memory.push_back(memory.take());
    }
    return std::move(timeline_);
  }

 private:
  void check_prices() const {
    const auto num_ranks = static_cast<size_t>(graph_.num_ranks());
    PIPER_CHECK(prices_.seconds.size() == graph_.tasks().size(), "a price for every task");
    PIPER_CHECK(std::all_of(prices_.seconds.begin(), prices_.seconds.end(),
                            [](double s) { return std::isfinite(s) && s >= 0; }),
                "prices are finite and not negative");
    PIPER_CHECK(prices_.transient_bytes.size() == graph_.tasks().size(),
                "transient bytes of every task");
    PIPER_CHECK(prices_.slot_bytes.size() == graph_.slots().size(), "bytes of every slot");
    PIPER_CHECK(prices_.static_bytes.size() == num_ranks, "static bytes of every rank");
    PIPER_CHECK(prices_.links.empty() ||
                    prices_.links.pattern.size() == static_cast<size_t>(graph_.num_operations()),
                "links of every operation");
    PIPER_CHECK(!shares_cores() || prices_.node_of_rank.size() == num_ranks,
                "a node for every rank");
  }

  bool shares_cores() const { return prices_.cores_per_node > 0; }
  Node& node_of(Rank rank) { return nodes_[prices_.node_of_rank[rank.index()]]; }
  Memory& memory_of(const Task& task) { return memory_[task.rank.index()]; }

  void happen(const Event& event) {
    switch (event.what) {
      case What::kTaskEnds:
        if (const Task& task = graph_.task(TaskId(event.id)); !is_late(task)) end(task);
        return;
      case What::kTransferMoves:
        network_.begin(OperationId(event.id), now_);
        return;
      case What::kOperationEnds:
        if (ends_at_[static_cast<size_t>(event.id)] != now_) return;  // it has changed its speed
        ends_at_[static_cast<size_t>(event.id)] = kEnded;
        network_.end(OperationId(event.id));
        for (const TaskId id : operations_.tasks(OperationId(event.id))) end(graph_.task(id));
        return;
    }
  }

  void end_at(OperationId id, double seconds) {
    ends_at_[id.index()] = seconds;
    events_.push({seconds, What::kOperationEnds, id.value});
  }

  void touch(Rank rank) {
    if (is_touched_[rank.index()]) return;
    is_touched_[rank.index()] = 1;
    touched_.push_back(rank);
  }

  void end(const Task& task) {
    ++num_ended_;
    timeline_.tasks[task.id.index()].end_seconds = now_;
    int64_t bytes = prices_.transient_bytes[task.id.index()];
    for (const graph::SlotId slot : graph_.frees(task)) bytes += prices_.slot_bytes[slot.index()];
    if (task.kind == TaskKind::kCompute) {
      computing_[task.rank.index()] = 0;
      holds_core_[task.rank.index()] = shares_cores() ? 1 : 0;
      if (shares_cores()) std::erase(node_of(task.rank).computing, task.rank);
    }
    if (bytes != 0) memory_of(task).change(now_, -bytes, keep_memory_);
    touch(task.rank);
  }

  // Starts what can start on the ranks where something ended.
  void advance() {
    std::sort(touched_.begin(), touched_.end());
    for (const Rank rank : touched_) {
      advance_compute(rank);
      for (const Stream stream :
           {Stream::kExchange, Stream::kSend, Stream::kReceive, Stream::kStates, Stream::kHost})
        advance_stream(rank, stream);
    }
    // A core is freed by a rank that was touched, and asked for by one: its node is among theirs.
    if (shares_cores())
      for (const Rank rank : touched_) hand_out_cores(node_of(rank));
    for (const OperationId operation : posted_) take_cores(operation, operations_.tasks(operation));
    posted_.clear();
    for (const Rank rank : touched_) is_touched_[rank.index()] = 0;
    touched_.clear();
  }

  size_t& next(Rank rank, Stream stream) {
    return next_[rank.index() * graph::kNumStreams + static_cast<size_t>(stream)];
  }

  // The task at the head of a stream if its dependencies have finished.
  const Task* ready(Rank rank, Stream stream) {
    const std::vector<TaskId>& ids = graph_.stream(rank, stream);
    const size_t i = next(rank, stream);
    if (i == ids.size()) return nullptr;
    const Task& task = graph_.task(ids[i]);
    for (const TaskId id : graph_.dependencies(task))
      if (!timeline_.tasks[id.index()].has_run()) return nullptr;
    return &task;
  }

  void advance_compute(Rank rank) {
    if (computing_[rank.index()]) return;
    const Task* task = ready(rank, Stream::kCompute);
    const bool holds_core = holds_core_[rank.index()] != 0;
    holds_core_[rank.index()] = 0;
    if (task == nullptr) {
      if (holds_core) ++node_of(rank).num_free;
      return;
    }
    computing_[rank.index()] = 1;  // or waiting for a core
    if (shares_cores() && !holds_core)
      node_of(rank).waiting.push_back({rank, now_});
    else
      start_compute(*task, 0);
  }

  void hand_out_cores(Node& node) {
    for (; node.num_free > 0 && !node.waiting.empty(); node.waiting.pop_front()) {
      --node.num_free;
      const auto [rank, since] = node.waiting.front();
      start_compute(
          graph_.task(graph_.stream(rank, Stream::kCompute)[next(rank, Stream::kCompute)]),
          since < now_ ? prices_.core_hand_over_seconds : 0);
    }
  }

  // Its core is taken now; `late`: how long it takes until the rank notices.
  void start_compute(const Task& task, double late) {
    ++next(task.rank, Stream::kCompute);
    start(task, prices_.transient_bytes[task.id.index()]);
    timeline_.tasks[task.id.index()].start_seconds += late;
    compute_until(task, now_ + late + prices_.seconds[task.id.index()]);
    if (shares_cores()) node_of(task.rank).computing.push_back(task.rank);
  }

  void compute_until(const Task& task, double seconds) {
    compute_ends_at_[task.rank.index()] = seconds;
    events_.push({seconds, What::kTaskEnds, task.id.value});
  }

  // A computing that was to end now and lost its core for a while since.
  bool is_late(const Task& task) const {
    return task.kind == TaskKind::kCompute && compute_ends_at_[task.rank.index()] != now_;
  }

  // What ranks of one host tell each other is copied by its cores: each member's part by the share
  // of a core that a rank has, which is how the links were measured, all ranks at once. Cores
  // without work do it first; what is left is time that those who compute lose.
  void take_cores(OperationId operation, std::span<const TaskId> members) {
    const auto of = [&](TaskId id) { return prices_.node_of_rank[graph_.task(id).rank.index()]; };
    for (const TaskId id : members)
      if (of(id) != of(members.front())) return;  // over a network
    const Node& node = nodes_[of(members.front())];
    if (node.computing.empty()) return;
    const cost::Links& links = prices_.links;
    const double alone = links.empty() || links.pattern[operation.index()] < 0
                             ? prices_.seconds[members.front().index()]
                             : links.transfer_seconds[operation.index()];
    const auto cores = static_cast<double>(prices_.cores_per_node);
    const auto computing = static_cast<double>(node.computing.size());
    const double copying =
        alone * static_cast<double>(members.size()) * cores / static_cast<double>(node.num_ranks);
    const double lost = (copying - alone * (cores - computing)) / computing;
    if (lost <= 0) return;
    for (const Rank rank : node.computing)
      compute_until(
          graph_.task(graph_.stream(rank, Stream::kCompute)[next(rank, Stream::kCompute) - 1]),
          compute_ends_at_[rank.index()] + lost);
  }

  void advance_stream(Rank rank, Stream stream) {
    for (const Task* task = ready(rank, stream); task != nullptr; task = ready(rank, stream)) {
      ++next(rank, stream);
      start(*task, prices_.transient_bytes[task->id.index()]);
      const std::span<const TaskId> members = operations_.tasks(task->operation);
      if (static_cast<size_t>(++num_posted_[task->operation.index()]) == members.size())
        run(task->operation, members);
    }
  }

  // All members have posted.
  void run(OperationId operation, std::span<const TaskId> members) {
    if (shares_cores()) posted_.push_back(operation);
    const cost::Links& links = prices_.links;
    if (links.empty() || links.pattern[operation.index()] < 0) {
      for (const TaskId id : members)
        events_.push({now_ + prices_.seconds[id.index()], What::kTaskEnds, id.value});
      return;
    }
    const double alone = prices_.seconds[members.front().index()];
    events_.push({now_ + (alone - links.transfer_seconds[operation.index()]), What::kTransferMoves,
                  operation.value});
    end_at(operation, now_ + alone);
  }

  void start(const Task& task, int64_t transient_bytes) {
    timeline_.tasks[task.id.index()].start_seconds = now_;
    int64_t bytes = transient_bytes;
    for (const graph::SlotId slot : graph_.writes(task)) bytes += prices_.slot_bytes[slot.index()];
    if (bytes != 0) memory_of(task).change(now_, bytes, keep_memory_);
  }

  const graph::Graph& graph_;
  const cost::Prices& prices_;
  const bool keep_memory_;
  graph::Operations operations_;
  Network network_;
  graph::Timeline timeline_;
  double now_ = 0;
  size_t num_ended_ = 0;
  std::priority_queue<Event> events_;
  std::vector<int32_t> num_posted_;      // by operation
  std::vector<double> ends_at_;          // by operation, as far as is known
  std::vector<size_t> next_;             // by rank and stream: index of the next task to start
  std::vector<char> computing_;          // by rank: or waiting for a core
  std::vector<double> compute_ends_at_;  // by rank, as far as is known
  std::vector<char> holds_core_;         // by rank: between two tasks of its own
  std::vector<OperationId> posted_;      // at this instant, where cores are shared
  std::vector<Rank> touched_;
  std::vector<char> is_touched_;  // by rank
  std::vector<Node> nodes_;
  std::vector<Memory> memory_;  // by rank
};

}  // namespace

graph::Timeline simulate(const schedule::StepGraph& step, const cost::Prices& prices,
                         bool keep_memory) {
  return Simulation(step, prices, keep_memory).simulate();
}

}  // namespace piper::sim
