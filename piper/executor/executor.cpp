// The loop: what may start, what has finished, and when to sleep.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/executor/clock.h>
#include <piper/executor/executor.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/host_read.h>

#include <algorithm>

namespace piper::executor {

using graph::Stream;
using graph::Task;
using graph::TaskId;

namespace {

constexpr Stream kCommunicationStreams[] = {Stream::kReceive, Stream::kExchange, Stream::kSend,
                                            Stream::kStates, Stream::kHost};

}  // namespace

Executor::Executor(const schedule::StepGraph& step, const strategy::Strategy& strategy,
                   const model::Model& model, Rank rank, nn::Stage& stage,
                   comm::Transport& transport, Cores& cores, ExecutorOptions options)
    : context_{step,
               strategy,
               model,
               rank,
               stage,
               transport,
               options.device_transport != nullptr ? *options.device_transport : transport,
               std::move(options),
               scalar_type(strategy.precision)},
      step_(step),
      cores_(cores),
      streams_(context_.options.device),
      slots_(step, rank, stage),
      segments_(context_, slots_, state_),
      communication_(context_, streams_, slots_, state_) {
  PIPER_CHECK(!streams_.is_device() || context_.tensors.memory() != nullptr,
              "a device's tensors need an endpoint of their own");
  local_task_.assign(step.graph.tasks().size(), -1);
  int32_t num_tasks = 0;
  for (const Task& task : step.graph.tasks())
    if (task.rank == rank) local_task_[task.id.index()] = num_tasks++;
  done_.resize(static_cast<size_t>(num_tasks));
  if (streams_.is_device()) ends_.resize(done_.size());
}

Executor::~Executor() = default;

bool Executor::ready(const Task& task) const {
  return std::ranges::all_of(step_.graph.dependencies(task),
                             [&](TaskId id) { return !id.valid() || done_[index_of(id)] != 0; });
}

void Executor::run_step(int64_t step_number, std::span<const MicroBatch> micro_batches,
                        const Update& update, graph::Timeline* timeline) {
  state_ = {.number = step_number,
            .micro_batches = micro_batches,
            .update = &update,
            .statistics = std::vector<double>(static_cast<size_t>(update.num_statistics))};
  timeline_ = timeline;
  std::ranges::fill(done_, 0);
  std::ranges::fill(cursor_, 0);
  num_done_ = 0;
  if (context_.options.gradient_shares != nullptr) context_.options.gradient_shares->start_step();

  streams_.start();
  // Gathers read weights that the step before has updated.
  if (!step_.graph.stream(context_.rank, Stream::kStates).empty())
    streams_.wait(Stream::kStates, streams_.record(Stream::kCompute));
  upload(micro_batches);
  if (streams_.is_device() && timeline != nullptr) {
    starts_.resize(done_.size());
    step_begins_ = streams_.record(Stream::kCompute, /*timed=*/true);
  }
  last_progress_seconds_ = now_seconds();
  const std::vector<TaskId>& compute = step_.graph.stream(context_.rank, Stream::kCompute);
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
void Executor::upload(std::span<const MicroBatch> micro_batches) {
  if (!streams_.is_device()) return;
  uploaded_.clear();
  const auto there = [&](const at::Tensor& tensor) {
    return tensor.defined() ? nn::put_on_device(tensor, streams_.device()) : tensor;
  };
  for (const MicroBatch& batch : micro_batches)
    uploaded_.push_back({there(batch.tokens_BS), there(batch.targets_T)});
  state_.micro_batches = uploaded_;
}

DeviceStreams::Use Executor::enter(const Task& task) {
  if (!streams_.is_device()) return {};
  const Stream own = task.stream;
  // A receive writes memory that is new: what the graph lets it wait for bounds the slots that are
  // alive, which the host does by starting it no earlier.
  for (const TaskId id : step_.graph.dependencies(task))
    if (own != Stream::kReceive && id.valid() && step_.graph.task(id).stream != own)
      streams_.wait(own, ends_[index_of(id)]);
  // What came back from the host lies in that stream's memory, and a backward uses up its tape.
  if (own == Stream::kCompute && context_.options.host_memory != nullptr)
    for (const graph::SlotId slot : step_.graph.reads(task))
      if (slots_.value(slot).tape != nullptr)
        for (const at::Tensor& saved : slots_.value(slot).tape->saved)
          streams_.keep_for(own, saved);
  if (timeline_) starts_[index_of(task.id)] = streams_.record(own, /*timed=*/true);
  return streams_.use(own);
}

// What the task has put into its stream is all.
void Executor::leave(const Task& task) {
  if (!streams_.is_device()) return;
  const Stream own = task.stream;
  for (const graph::SlotId slot : step_.graph.reads(task)) keep_for(own, slots_.value(slot));
  for (const graph::SlotId slot : step_.graph.writes(task)) keep_for(own, slots_.value(slot));
  ends_[index_of(task.id)] = streams_.record(own, timeline_ != nullptr);
}

void Executor::keep_for(Stream stream, const SlotValue& value) const {
  streams_.keep_for(stream, value.tensor);
  if (value.routing == nullptr) return;
  for (at::Tensor* tensor : tensors_of(*value.routing)) streams_.keep_for(stream, *tensor);
}

// Reads the tasks' times from the streams, in the host's seconds: the host sees when the last one
// ends.
void Executor::take_device_times() {
  if (!streams_.is_device() || timeline_ == nullptr) return;
  const DeviceEvent last = streams_.wait_for_all();
  const double begin = now_seconds() - DeviceStreams::seconds_between(step_begins_, last);
  const auto seconds = [&](const DeviceEvent& event) {
    return begin + DeviceStreams::seconds_between(step_begins_, event);
  };
  for (const Task& task : step_.graph.tasks()) {
    if (task.rank != context_.rank) continue;
    const auto local = index_of(task.id);
    timeline_->tasks[task.id.index()] = {seconds(starts_[local]), seconds(ends_[local])};
  }
  std::ranges::fill(starts_, nullptr);
  step_begins_ = nullptr;
}

bool Executor::start_communication() {
  bool moved = false;
  for (const Stream stream : kCommunicationStreams) {
    const std::vector<TaskId>& tasks = step_.graph.stream(context_.rank, stream);
    size_t& next = cursor_[static_cast<size_t>(stream)];
    for (; next < tasks.size() && ready(step_.graph.task(tasks[next])); ++next, moved = true) {
      const Task& task = step_.graph.task(tasks[next]);
      if (context_.options.note)
        context_.options.note(state_.number, schedule::task_name(step_, task));
      if (timeline_) timeline_->tasks[task.id.index()].start_seconds = now_seconds();
      const DeviceStreams::Use use = enter(task);
      in_flight_.push_back({task.id, stream, communication_.start(task)});
    }
  }
  return moved;
}

bool Executor::finish_communication() {
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

void Executor::run_compute(const Task& task) {
  if (context_.options.note) context_.options.note(state_.number, schedule::task_name(step_, task));
  if (!core_) core_.emplace(cores_);
  const double start = now_seconds();
  const DeviceStreams::Use use = enter(task);
  slots_.hold_gradients(task);
  segments_.run(task);
  if (timeline_) timeline_->tasks[task.id.index()] = {start, now_seconds()};
  finish(task);
}

void Executor::finish(const Task& task) {
  last_progress_seconds_ = now_seconds();
  communication_.end(task);
  leave(task);
  for (const graph::SlotId slot : step_.graph.frees(task)) slots_.free(slot);
  done_[index_of(task.id)] = 1;
  ++num_done_;
  if (timeline_ && context_.options.live_bytes)
    timeline_->memory[context_.rank.index()].push_back(
        {now_seconds(), context_.options.live_bytes()});
}

void Executor::wait_for_communication() {
  PIPER_CHECK(!in_flight_.empty(),
              fmt::format("rank {} has nothing to do and nothing in flight: the graph deadlocks",
                          context_.rank.value));
  const double left = last_progress_seconds_ + context_.options.timeout_seconds - now_seconds();
  if (left <= 0) {
    const std::string what =
        fmt::format("rank {}: timed out after {:.1f} s without progress in {}; {}",
                    context_.rank.value, context_.options.timeout_seconds,
                    in_flight_.front().operation->waiting_for(), context_.transport.unmatched());
    context_.transport.fail(what, comm::Fault::kRun);
    throw CommError(what);
  }
  completions_seen_ = context_.transport.wait_completion(completions_seen_, left);
}

}  // namespace piper::executor
