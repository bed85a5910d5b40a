// The player's loop: what may start, what has finished, and when to sleep. player_segments.cpp runs
// compute tasks, player_communication.cpp starts the others.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/executor/player.h>
#include <piper/executor/token_exchange.h>

#include <algorithm>
#include <chrono>

namespace piper::executor {

using graph::Stream;
using graph::Task;
using graph::TaskId;

namespace {

constexpr Stream kCommunicationStreams[] = {Stream::kReceive, Stream::kExchange, Stream::kSend,
                                            Stream::kStates, Stream::kHost};

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
      tensors_(options_.device_transport != nullptr ? *options_.device_transport : transport),
      dtype_(scalar_type(strategy.precision)),
      streams_(options_.device) {
  PIPER_CHECK(!streams_.is_device() || tensors_.memory() != nullptr,
              "a device's tensors need an endpoint of their own");
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
  if (streams_.is_device()) ends_.resize(done_.size());
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
  shared_counts_.clear();
  received_rows_.clear();
  routed_rows_.clear();
  distinct_tokens_.clear();
  if (options_.gradient_shares != nullptr) options_.gradient_shares->start_step();
  statistics_.assign(static_cast<size_t>(update.num_statistics), 0.0);

  streams_.start();
  // Gathers read weights that the step before has updated.
  if (!step_.graph.stream(rank_, Stream::kStates).empty())
    streams_.wait(Stream::kStates, streams_.record(Stream::kCompute));
  upload(micro_batches);
  if (streams_.is_device() && timeline != nullptr) {
    starts_.resize(done_.size());
    streams_.synchronize();
    step_begins_ = streams_.record(Stream::kCompute, /*timed=*/true);
    step_begin_seconds_ = now_seconds();
  }
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
  take_device_times();
  std::ranges::fill(ends_, nullptr);
}

// Tokens and targets come from the host, where batches are made.
void Player::upload(std::span<const MicroBatch> micro_batches) {
  if (!streams_.is_device()) return;
  uploaded_.clear();
  const auto there = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(streams_.device(), /*non_blocking=*/true) : tensor;
  };
  for (const MicroBatch& batch : micro_batches)
    uploaded_.push_back({there(batch.tokens_BS), there(batch.targets_T)});
  micro_batches_ = uploaded_;
}

DeviceStreams::Use Player::enter(const Task& task) {
  if (!streams_.is_device()) return {};
  const Stream own = task.stream;
  // A receive writes memory that is new: what the graph lets it wait for bounds the slots that are
  // alive, which the host does by starting it no earlier.
  for (const TaskId id : step_.graph.dependencies(task))
    if (own != Stream::kReceive && id.valid() && step_.graph.task(id).stream != own)
      streams_.wait(own, ends_[static_cast<size_t>(local_task_[id.index()])]);
  // What came back from the host lies in that stream's memory, and a backward uses up its tape.
  if (own == Stream::kCompute && options_.host_memory != nullptr)
    for (const graph::SlotId slot : step_.graph.reads(task))
      if (value(slot).tape != nullptr)
        for (const at::Tensor& saved : value(slot).tape->saved) streams_.keep_for(own, saved);
  if (timeline_)
    starts_[static_cast<size_t>(local_task_[task.id.index()])] =
        streams_.record(own, /*timed=*/true);
  return streams_.use(own);
}

// What the task has put into its stream is all.
void Player::leave(const Task& task) {
  if (!streams_.is_device()) return;
  const Stream own = task.stream;
  for (const graph::SlotId slot : step_.graph.reads(task)) keep_for(own, value(slot));
  for (const graph::SlotId slot : step_.graph.writes(task)) keep_for(own, value(slot));
  ends_[static_cast<size_t>(local_task_[task.id.index()])] =
      streams_.record(own, timeline_ != nullptr);
}

void Player::keep_for(Stream stream, const SlotValue& value) const {
  streams_.keep_for(stream, value.tensor);
  if (value.routing == nullptr) return;
  const nn::Routing& routing = *value.routing;
  for (const at::Tensor* tensor :
       {&routing.weights, &routing.token, &routing.position, &routing.sequence_counts,
        &routing.received_row, &routing.received_position, &routing.received_weights,
        &routing.g_received_weights})
    streams_.keep_for(stream, *tensor);
}

// Of the streams, in the host's seconds.
void Player::take_device_times() {
  if (!streams_.is_device() || timeline_ == nullptr) return;
  streams_.synchronize();
  const auto seconds = [&](const DeviceEvent& event) {
    return step_begin_seconds_ + DeviceStreams::seconds_between(step_begins_, event);
  };
  for (const Task& task : step_.graph.tasks()) {
    if (task.rank != rank_) continue;
    const auto local = static_cast<size_t>(local_task_[task.id.index()]);
    timeline_->tasks[task.id.index()] = {seconds(starts_[local]), seconds(ends_[local])};
  }
  std::ranges::fill(starts_, nullptr);
  step_begins_ = nullptr;
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
      const DeviceStreams::Use use = enter(task);
      in_flight_.push_back({task.id, stream, start(task)});
    }
  }
  return moved;
}

bool Player::finish_communication() {
  bool moved = false;
  for (size_t i = 0; i < in_flight_.size();) {
    const DeviceStreams::Use use = streams_.use(in_flight_[i].stream);
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
  const DeviceStreams::Use use = enter(task);
  hold_gradients(task);
  run_segment(task);
  if (timeline_) timeline_->tasks[task.id.index()] = {start, now_seconds()};
  finish(task);
}

void Player::finish(const Task& task) {
  last_progress_seconds_ = now_seconds();
  if (task.kind == graph::TaskKind::kReduceScatter &&
      schedule::moves_rows(step_.segment(task).kind))
    keep_own_share(task);
  if (is_fused(task)) end_fused_exchange(task);
  if (task.kind == graph::TaskKind::kHostCopy) end_host_copy(task);
  leave(task);
  for (const graph::SlotId slot : step_.graph.frees(task)) free(slot);
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

}  // namespace piper::executor
