// The player's loop: what may start, what has finished, and when to sleep. player_segments.cpp runs
// compute tasks, player_communication.cpp starts the others.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/runtime/player.h>
#include <piper/runtime/token_exchange.h>

#include <algorithm>
#include <chrono>

namespace piper::runtime {

using graph::Stream;
using graph::Task;
using graph::TaskId;

namespace {

constexpr Stream kCommunicationStreams[] = {Stream::kReceive, Stream::kExchange, Stream::kSend};

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

at::ScalarType scalar_type(strategy::Precision precision) {
  switch (precision) {
    case strategy::Precision::kFp32:
      return at::kFloat;
    case strategy::Precision::kBf16:
      return at::kBFloat16;
    case strategy::Precision::kFp64:
      return at::kDouble;
    case strategy::Precision::kFp8:
    case strategy::Precision::kMxfp8:
    case strategy::Precision::kNvfp4:
      break;
  }
  PIPER_CHECK(false, "precision");
  return at::kFloat;
}

Player::Player(const schedule::StepGraph& step, const strategy::Strategy& strategy,
               const model::Model& model, Rank rank, nn::Stage& stage, comm::Transport& transport,
               Cores& cores, PlayerOptions options)
    : step_(step),
      strategy_(strategy),
      model_(model),
      rank_(rank),
      stage_(stage),
      transport_(transport),
      cores_(cores),
      options_(std::move(options)),
      dtype_(scalar_type(strategy.precision)) {
  local_slot_.assign(step.graph.slots().size(), -1);
  int32_t num_slots = 0;
  for (size_t i = 0; i < step.graph.slots().size(); ++i)
    if (step.graph.slots()[i].rank == rank) local_slot_[i] = num_slots++;
  values_.resize(static_cast<size_t>(num_slots));

  local_task_.assign(step.graph.tasks().size(), -1);
  int32_t num_tasks = 0;
  for (const Task& task : step.graph.tasks())
    if (task.rank == rank) local_task_[task.id.index()] = num_tasks++;
  done_.resize(static_cast<size_t>(num_tasks));
}

Player::~Player() = default;

bool Player::ready(const Task& task) const {
  return std::ranges::all_of(step_.graph.dependencies(task), [&](TaskId id) {
    return !id.valid() || done_[static_cast<size_t>(local_task_[id.index()])] != 0;
  });
}

void Player::play(int64_t step_number, std::span<const MicroBatch> micro_batches,
                  const Update& update, graph::Timeline* timeline) {
  step_number_ = step_number;
  micro_batches_ = micro_batches;
  update_ = &update;
  timeline_ = timeline;
  std::ranges::fill(done_, 0);
  std::ranges::fill(cursor_, 0);
  num_done_ = 0;
  received_counts_.clear();
  received_rows_.clear();
  routed_rows_.clear();
  distinct_tokens_.clear();
  statistics_.assign(static_cast<size_t>(update.num_statistics), 0.0);

  last_progress_seconds_ = now_seconds();
  const std::vector<TaskId>& compute = step_.graph.stream(rank_, Stream::kCompute);
  size_t& next = cursor_[static_cast<size_t>(Stream::kCompute)];
  while (num_done_ < std::ssize(done_)) {
    bool moved = start_communication();
    moved |= finish_communication();
    if (moved) continue;
    if (next < compute.size() && ready(step_.graph.task(compute[next]))) {
      run_compute(step_.graph.task(compute[next]));
      ++next;
      continue;
    }
    core_.reset();  // others may compute while this rank waits
    wait_for_communication();
  }
  core_.reset();
}

bool Player::start_communication() {
  bool moved = false;
  for (const Stream stream : kCommunicationStreams) {
    const std::vector<TaskId>& tasks = step_.graph.stream(rank_, stream);
    size_t& next = cursor_[static_cast<size_t>(stream)];
    for (; next < tasks.size() && ready(step_.graph.task(tasks[next])); ++next, moved = true) {
      const Task& task = step_.graph.task(tasks[next]);
      if (options_.note) options_.note(step_number_, schedule::task_name(step_, task));
      if (timeline_) timeline_->tasks[task.id.index()].start_seconds = now_seconds();
      in_flight_.push_back({task.id, start(task)});
    }
  }
  return moved;
}

bool Player::finish_communication() {
  bool moved = false;
  for (size_t i = 0; i < in_flight_.size();) {
    if (!in_flight_[i].operation->advance()) {
      ++i;
      continue;
    }
    const Task& task = step_.graph.task(in_flight_[i].task);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    if (timeline_) timeline_->tasks[task.id.index()].end_seconds = now_seconds();
    finish(task);
    moved = true;
  }
  return moved;
}

void Player::run_compute(const Task& task) {
  if (options_.note) options_.note(step_number_, schedule::task_name(step_, task));
  if (!core_) core_.emplace(cores_);
  const double start = now_seconds();
  run_segment(task);
  if (timeline_) timeline_->tasks[task.id.index()] = {start, now_seconds()};
  finish(task);
}

void Player::finish(const Task& task) {
  last_progress_seconds_ = now_seconds();
  if (task.kind == graph::TaskKind::kReduceScatter &&
      step_.segment(task).kind == schedule::SegmentKind::kTensor)
    keep_own_share(task);
  for (const graph::SlotId slot : step_.graph.frees(task)) value(slot) = SlotValue{};
  done_[static_cast<size_t>(local_task_[task.id.index()])] = 1;
  ++num_done_;
  if (timeline_ && options_.live_bytes)
    timeline_->memory[rank_.index()].push_back({now_seconds(), options_.live_bytes()});
}

void Player::wait_for_communication() {
  PIPER_CHECK(!in_flight_.empty(),
              fmt::format("rank {} has nothing to do and nothing in flight: the graph deadlocks",
                          rank_.value));
  const double left = last_progress_seconds_ + options_.timeout_seconds - now_seconds();
  if (left <= 0) {
    const std::string what =
        fmt::format("rank {}: timed out after {:.1f} s without progress in {}; {}", rank_.value,
                    options_.timeout_seconds, in_flight_.front().operation->waiting_for(),
                    transport_.unmatched());
    transport_.fail(what);
    throw CommError(what);
  }
  completions_seen_ = transport_.wait_completion(completions_seen_, left);
}

}  // namespace piper::runtime
