#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/train/traffic.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace piper::train {
namespace {

using graph::Task;
using graph::TaskKind;
using schedule::SegmentKind;

std::string what(const schedule::StepGraph& step, const Task& task) {
  const SegmentKind segment = task.segment.valid() ? step.segment(task).kind : SegmentKind::kHead;
  switch (task.kind) {
    case TaskKind::kCompute:
    case TaskKind::kAllGather:
    case TaskKind::kReduceScatter:
    case TaskKind::kRing:
    case TaskKind::kStateCollective:
    case TaskKind::kHostCopy:
      return graph::name(task.kind);
    case TaskKind::kSend:
    case TaskKind::kReceive:
      return "hidden";
    case TaskKind::kExchangeCounts:
      return "counts";
    case TaskKind::kAllToAll:
      return segment == SegmentKind::kGate ? "dispatch" : "combine";
    case TaskKind::kAllReduce:
      return segment == SegmentKind::kStatistics       ? "statistics"
             : segment == SegmentKind::kSequenceCounts ? "sequence counts"
             : schedule::moves_rows(segment)           ? graph::name(task.kind)
                                                       : "gradients";
  }
  return {};
}

using Place = std::tuple<int64_t, int64_t, int64_t, std::string, std::string>;

Place place_of(const schedule::StepGraph& step, const Task& task, int64_t from, int64_t to) {
  const int64_t layer =
      task.segment.valid() && !task.peer.valid() ? std::max(-1, step.segment(task).layer) : -1;
  return {from, to, layer, what(step, task), graph::name(task.phase)};
}

}  // namespace

int64_t Traffic::num_unequal() const {
  return std::ranges::count_if(rows, [](const TrafficRow& row) { return !row.equal(); });
}

int64_t Traffic::num_pairs() const {
  std::set<std::pair<int64_t, int64_t>> pairs;
  for (const TrafficRow& row : rows) pairs.emplace(row.from, row.to);
  return std::ssize(pairs);
}

int64_t Traffic::predicted_bytes() const {
  int64_t bytes = 0;
  for (const TrafficRow& row : rows) bytes += row.predicted_bytes;
  return bytes;
}

int64_t Traffic::sent_bytes() const {
  int64_t bytes = 0;
  for (const TrafficRow& row : rows) bytes += row.sent_bytes;
  return bytes;
}

Traffic compare_traffic(const schedule::StepGraph& step, int64_t number,
                        const std::vector<cost::SentBytes>& predicted,
                        const CountedTraffic& counted) {
  // By operation: one task stands for all of its members.
  std::vector<const Task*> task_of(static_cast<size_t>(step.graph.num_operations()));
  for (const Task& task : step.graph.tasks())
    if (task.operation.valid()) task_of[task.operation.index()] = &task;

  std::map<Place, TrafficRow> rows;
  for (const cost::SentBytes& sent : predicted) {
    const Task& task = step.graph.task(sent.task);
    rows[place_of(step, task, task.rank.value, sent.to.value)].predicted_bytes += sent.bytes;
  }
  for (const auto& [rank, operations] : counted)
    for (const comm::CountedBytes& c : operations) {
      const uint64_t operation = c.key & ((uint64_t{1} << kOperationBits) - 1);
      PIPER_CHECK(c.key >> kOperationBits == static_cast<uint64_t>(number) &&
                      operation < task_of.size() && task_of[operation] != nullptr,
                  fmt::format("an operation {} of no task", c.key));
      const int64_t from = c.is_sent ? rank : c.peer.value, to = c.is_sent ? c.peer.value : rank;
      if (from == to) continue;
      TrafficRow& row = rows[place_of(step, *task_of[operation], from, to)];
      (c.is_sent ? row.sent_bytes : row.received_bytes) += c.bytes;
      if (c.is_sent) row.num_messages += c.num_messages;
    }

  Traffic traffic{.step = number, .rows = {}};
  for (auto& [place, row] : rows) {
    std::tie(row.from, row.to, row.layer, row.what, row.phase) = place;
    traffic.rows.push_back(std::move(row));
  }
  return traffic;
}

Json to_json(const Traffic& traffic) {
  Json json{{"step", traffic.step},
            {"num_pairs", traffic.num_pairs()},
            {"predicted_bytes", traffic.predicted_bytes()},
            {"counted_bytes", traffic.sent_bytes()},
            {"num_rows", traffic.rows.size()},
            {"num_unequal", traffic.num_unequal()}};
  json["rows"] = Json::array();
  for (const TrafficRow& row : traffic.rows)
    json["rows"].push_back({{"from", row.from},
                            {"to", row.to},
                            {"layer", row.layer},
                            {"what", row.what},
                            {"phase", row.phase},
                            {"messages", row.num_messages},
                            {"predicted_bytes", row.predicted_bytes},
                            {"sent_bytes", row.sent_bytes},
                            {"received_bytes", row.received_bytes}});
  return json;
}

std::string to_text(const Traffic& traffic) {
  constexpr int64_t kShown = 4;
  std::string text = fmt::format(
      "bytes sent in step {}: {} predicted, {} counted by the transport; {} pairs, {} sums by "
      "pair, "
      "layer and direction, {}\n",
      traffic.step, format_bytes(traffic.predicted_bytes()), format_bytes(traffic.sent_bytes()),
      traffic.num_pairs(), traffic.rows.size(),
      traffic.num_unequal() == 0 ? "all equal"
                                 : fmt::format("{} of them UNEQUAL", traffic.num_unequal()));
  int64_t shown = 0;
  for (const TrafficRow& row : traffic.rows) {
    if (row.equal() || shown == kShown) continue;
    ++shown;
    text += fmt::format("  rank {} to {}, layer {}, {} {}: {} predicted, {} sent, {} received\n",
                        row.from, row.to, row.layer, row.phase, row.what, row.predicted_bytes,
                        row.sent_bytes, row.received_bytes);
  }
  return text;
}

}  // namespace piper::train
