#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/comm/device_memory.h>
#include <piper/comm/element.h>
#include <piper/comm/step_executor.h>

#include <algorithm>
#include <cstring>

namespace piper::comm {
namespace {

// By step, whether something is to be done once its message has arrived or left: others wait for
// it, or the owner is the one that copies it and tells its peer (a device's memory).
std::vector<bool> wakes(Transport& transport, const std::vector<collective::Step>& steps) {
  std::vector<bool> result(steps.size(), transport.memory() != nullptr);
  for (const collective::Step& step : steps)
    for (const int32_t before : step.after) result[static_cast<size_t>(before)] = true;
  return result;
}

}  // namespace

using collective::Block;
using collective::Buffer;
using collective::Step;
using collective::StepKind;

StepExecutor::StepExecutor(Transport& transport, const Group& group, std::string what,
                           collective::MemberSteps steps, ExecutionBuffers buffers, Unit unit)
    : transport_(transport),
      members_(group.members),
      name_{0, std::move(what)},
      steps_(std::move(steps.steps)),
      row_pairs_(std::move(steps.row_pairs)),
      row_count_(steps.row_count),
      buffers_(std::move(buffers)),
      unit_(unit),
      num_before_(steps_.size()),
      num_unmet_(steps_.size()),
      dependents_(steps_.size()),
      num_finished_(steps_.size()),
      completions_(wakes(transport, steps_)) {
  PIPER_CHECK(static_cast<int64_t>(buffers_.input.size()) == steps.input_count * unit.bytes,
              name_.what);
  PIPER_CHECK(static_cast<int64_t>(buffers_.output.size()) == steps.output_count * unit.bytes,
              name_.what);
  PIPER_CHECK(steps.scratch_count == 0 || buffers_.scratch != nullptr, name_.what);
  for (size_t s = 0; s < steps_.size(); ++s) {
    num_before_[s] = static_cast<int32_t>(steps_[s].after.size());
    for (const int32_t before : steps_[s].after)
      dependents_[before].push_back(static_cast<int32_t>(s));
  }
  ready_.reserve(steps_.size());
  in_flight_.reserve(steps_.size());
  completed_.reserve(steps_.size());
  position_.resize(steps_.size());
  requests_.resize(steps_.size());
}

StepExecutor::StepExecutor(Transport& transport, const Group& group, OperationName name,
                           collective::MemberSteps steps, ExecutionBuffers buffers, Unit unit)
    : StepExecutor(transport, group, std::move(name.what), std::move(steps), std::move(buffers),
                   unit) {
  start(name.key);
}

void StepExecutor::start(uint64_t key) {
  PIPER_CHECK(num_finished_ == steps_.size(), "started before it was done: " + name_.what);
  name_.key = key;
  num_finished_ = 0;
  num_unmet_ = num_before_;
  for (size_t s = 0; s < steps_.size(); ++s)
    if (num_before_[s] == 0) ready_.push_back(static_cast<int32_t>(s));
  start_ready();
}

std::span<const std::byte> StepExecutor::source(const Block& block) const {
  if (block.buffer == Buffer::kInput)
    return buffers_.input.subspan(block.offset * unit_.bytes, block.count * unit_.bytes);
  return target(block);
}

std::span<std::byte> StepExecutor::target(const Block& block) const {
  const size_t offset = block.offset * unit_.bytes, size = block.count * unit_.bytes;
  switch (block.buffer) {
    case Buffer::kInput:
      PIPER_CHECK(false, "a step writes the input of " + name_.what);
      break;
    case Buffer::kOutput:
      return buffers_.output.subspan(offset, size);
    case Buffer::kScratch:
      return {buffers_.scratch.get() + offset, size};
  }
  return {};
}

void StepExecutor::begin(int32_t index) {
  const Step& step = steps_[index];
  switch (step.kind) {
    case StepKind::kSend:
      return track(
          index, transport_.post_send(members_[step.peer], name_, step.part, source(step.source)));
    case StepKind::kReceive:
      return track(index, transport_.post_receive(members_[step.peer], name_, step.part,
                                                  target(step.target)));
    case StepKind::kCopy:
    case StepKind::kAdd:
    case StepKind::kCopyRows:
    case StepKind::kAddRows:
      break;
  }
  if (DeviceMemory* const memory = transport_.memory())
    begin_on_device(step, *memory);
  else
    begin_here(step);
  finish(index);
}

void StepExecutor::begin_here(const Step& step) {
  switch (step.kind) {
    case StepKind::kCopy:
      if (step.source.count > 0)
        std::memcpy(target(step.target).data(), source(step.source).data(),
                    step.source.count * unit_.bytes);
      return;
    case StepKind::kAdd:
      return add(unit_.element, target(step.target), source(step.source));
    case StepKind::kCopyRows:
    case StepKind::kAddRows:
      return move_rows(step);
    case StepKind::kSend:
    case StepKind::kReceive:
      break;
  }
  PIPER_CHECK(false, "a message is no local step");
}

// Everything is put into the calling thread's stream, in the order of the steps: what comes after a
// step in the steps comes after it there.
void StepExecutor::begin_on_device(const Step& step, DeviceMemory& memory) const {
  if (step.kind == StepKind::kCopyRows || step.kind == StepKind::kAddRows) {
    const int64_t bytes = row_count_ * unit_.bytes;
    if (bytes == 0 || step.num_rows == 0) return;
    const std::span rows =
        std::span(row_pairs_)
            .subspan(static_cast<size_t>(step.first_row), static_cast<size_t>(step.num_rows));
    memory.prepare_rows(rows, step.kind == StepKind::kAddRows, unit_.element, bytes)
        ->move(target(step.target).data(), source(step.source).data(), kCurrentStream);
    return;
  }
  const std::span<const std::byte> from = source(step.source);
  if (from.empty()) return;
  if (step.kind == StepKind::kCopy)
    memory.copy(target(step.target).data(), from.data(), from.size());
  else
    memory.add(unit_.element, target(step.target).data(), from.data(), step.source.count,
               kCurrentStream);
}

void StepExecutor::move_rows(const Step& step) {
  const size_t bytes = row_count_ * unit_.bytes;
  const std::span<const std::byte> from = source(step.source);
  const std::span<std::byte> to = target(step.target);
  for (int32_t r = step.first_row; bytes > 0 && r < step.first_row + step.num_rows; ++r) {
    const collective::RowPair& pair = row_pairs_[r];
    if (step.kind == StepKind::kCopyRows)
      std::memcpy(to.subspan(pair.to * bytes, bytes).data(),
                  from.subspan(pair.from * bytes, bytes).data(), bytes);
    else
      add(unit_.element, to.subspan(pair.to * bytes, bytes),
          from.subspan(pair.from * bytes, bytes));
  }
}

void StepExecutor::track(int32_t index, std::shared_ptr<Request> request) {
  if (request->done()) return finish(index);
  completions_.expect();
  request->tell(completions_, index);
  requests_[index] = std::move(request);
  position_[index] = static_cast<int32_t>(in_flight_.size());
  in_flight_.push_back(index);
}

void StepExecutor::land(int32_t index) {
  const int32_t last = in_flight_.back();
  in_flight_[position_[index]] = last;
  position_[last] = position_[index];
  in_flight_.pop_back();
  requests_[index].reset();
  finish(index);
}

void StepExecutor::finish(int32_t index) {
  ++num_finished_;
  for (const int32_t dependent : dependents_[index])
    if (--num_unmet_[dependent] == 0) ready_.push_back(dependent);
}

void StepExecutor::start_ready() {
  for (size_t i = 0; i < ready_.size(); ++i) begin(ready_[i]);  // grows while it runs
  ready_.clear();
}

bool StepExecutor::advance() {
  for (completions_.take(completed_); !completed_.empty(); completions_.take(completed_)) {
    for (const int32_t step : completed_)
      if (requests_[step] != nullptr && requests_[step]->done()) land(step);  // or throws
    start_ready();
  }
  // Any of them says when the transport has failed.
  if (!in_flight_.empty()) requests_[in_flight_.front()]->done();
  return num_finished_ == steps_.size();
}

std::string StepExecutor::waiting_for() const {
  constexpr size_t kShown = 4;
  if (in_flight_.empty()) return fmt::format("'{}'", name_.what);
  std::string text = fmt::format("'{}', waiting for ", name_.what);
  for (size_t i = 0; i < std::min(kShown, in_flight_.size()); ++i) {
    const Step& step = steps_[in_flight_[i]];
    const bool sends = step.kind == StepKind::kSend;
    text += fmt::format("{}rank {} ({}, {} bytes)", i == 0 ? "" : ", ", members_[step.peer].value,
                        sends ? "send" : "receive",
                        (sends ? step.source : step.target).count * unit_.bytes);
  }
  if (in_flight_.size() > kShown) text += fmt::format(" and {} more", in_flight_.size() - kShown);
  return text;
}

}  // namespace piper::comm
