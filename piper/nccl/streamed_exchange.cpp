#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nccl/streamed_exchange.h>

#include <algorithm>
#include <chrono>

namespace piper::nccl {

using collective::Block;
using collective::Buffer;
using collective::Lane;
using collective::Launch;
using collective::Step;
using collective::StepKind;

StreamedExchange::StreamedExchange(Communicator& communicator, std::string what,
                                   collective::MemberSteps steps, const DeviceBuffers& buffers,
                                   comm::Unit unit, comm::DeviceOperations* operations,
                                   cudaStream_t caller)
    : communicator_(communicator),
      library_(communicator.library()),
      what_(std::move(what)),
      steps_(std::move(steps)),
      order_(collective::stream_order(steps_)),
      buffers_(buffers),
      unit_(unit),
      operations_(operations),
      caller_(caller),
      rows_(steps_.steps.size()),
      begin_(communicator.take_event()),
      messages_end_(communicator.take_event()),
      local_end_(communicator.take_event()) {
  PIPER_CHECK(steps_.input_count == 0 || buffers_.input != nullptr, what_);
  PIPER_CHECK(steps_.output_count == 0 || buffers_.output != nullptr, what_);
  PIPER_CHECK(steps_.scratch_count == 0 || buffers_.scratch != nullptr, what_);
  over_.reserve(order_.launches.size());
  for (size_t i = 0; i < order_.launches.size(); ++i) over_.push_back(communicator_.take_event());
  for (const int32_t s : order_.steps) {
    const Step& step = steps_.steps[s];
    if (is_message(step) || step.kind == StepKind::kCopy) continue;
    PIPER_CHECK(operations_ != nullptr, what_ + " adds or moves rows");
    if (step.kind == StepKind::kAdd) continue;
    rows_[s] = operations_->prepare_rows(
        std::span(steps_.row_pairs).subspan(step.first_row, step.num_rows),
        step.kind == StepKind::kAddRows, unit_.element, steps_.row_count * unit_.bytes);
  }
}

StreamedExchange::~StreamedExchange() {
  if (is_running_) {
    communicator_.abort();
    for (const Lane lane : {Lane::kMessages, Lane::kLocal})
      library_.cuda.stream_synchronize(stream(lane));
  }
  for (Event* event : {&begin_, &messages_end_, &local_end_})
    communicator_.give_back(std::move(*event));
  for (Event& event : over_) communicator_.give_back(std::move(event));
}

cudaStream_t StreamedExchange::stream(Lane lane) const {
  return lane == Lane::kMessages ? communicator_.messages() : communicator_.local();
}

const std::byte* StreamedExchange::source(const Block& block) const {
  if (block.buffer == Buffer::kInput) return buffers_.input + block.offset * unit_.bytes;
  return target(block);
}

std::byte* StreamedExchange::target(const Block& block) const {
  PIPER_CHECK(block.buffer != Buffer::kInput, "a step writes the input of " + what_);
  std::byte* buffer = block.buffer == Buffer::kOutput ? buffers_.output : buffers_.scratch;
  return buffer + block.offset * unit_.bytes;
}

void StreamedExchange::start(uint64_t /*key*/) {
  PIPER_CHECK(!is_running_, "started before it was done: " + what_);
  if (communicator_.aborted())
    throw CommError(
        fmt::format("rank {}: '{}' is asked of the communicator '{}', which was given up",
                    communicator_.rank().value, what_, communicator_.meeting().what()));
  communicator_.meeting().begin_operation(communicator_.member());
  num_begun_ = communicator_.meeting().num_begun(communicator_.member());
  next_ = 0;
  is_running_ = true;
  begin_.record(caller_);
  for (const Lane lane : {Lane::kMessages, Lane::kLocal}) begin_.hold_back(stream(lane));
  advance();
}

bool StreamedExchange::advance() {
  if (!is_running_) return true;
  while (is_pending_ || next_ < order_.launches.size()) {
    if (is_pending_) {
      if (!communicator_.ready()) return false;
      is_pending_ = false;
      over_[next_ - 1].record(stream(Lane::kMessages));
    } else {
      put_in(order_.launches[next_++]);
    }
    if (!is_pending_ && next_ == order_.launches.size()) finish_putting_in();
  }
  if (!order_.launches.empty() &&
      (!communicator_.ready() || !messages_end_.reached() || !local_end_.reached()))
    return false;
  is_running_ = false;
  return true;
}

void StreamedExchange::put_in(const Launch& launch) {
  cudaStream_t own = stream(launch.lane);
  if (launch.waits_for >= 0) over_[launch.waits_for].hold_back(own);
  if (launch.lane == Lane::kMessages) return put_in_group(launch);
  for (int32_t k = launch.first; k < launch.first + launch.count; ++k)
    put_in_local(steps_.steps[order_.steps[k]], order_.steps[k]);
  over_[&launch - order_.launches.data()].record(own);
}

void StreamedExchange::put_in_group(const Launch& launch) {
  cudaStream_t own = stream(Lane::kMessages);
  ncclComm_t handle = communicator_.handle();
  library_.check(library_.nccl.group_start(), "ncclGroupStart");
  for (int32_t k = launch.first; k < launch.first + launch.count; ++k) {
    const Step& step = steps_.steps[order_.steps[k]];
    if (step.kind == StepKind::kSend)
      library_.check(library_.nccl.send(source(step.source), step.source.count * unit_.bytes,
                                        ncclUint8, step.peer, handle, own),
                     "ncclSend");
    else
      library_.check(library_.nccl.receive(target(step.target), step.target.count * unit_.bytes,
                                           ncclUint8, step.peer, handle, own),
                     "ncclRecv");
  }
  library_.check(library_.nccl.group_end(), "ncclGroupEnd");
  is_pending_ = true;
}

void StreamedExchange::put_in_local(const Step& step, int32_t index) {
  cudaStream_t own = stream(Lane::kLocal);
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kReceive:
      PIPER_CHECK(false, "a message among local steps of " + what_);
      break;
    case StepKind::kCopy:
      return library_.check(library_.cuda.memcpy_async(target(step.target), source(step.source),
                                                       step.source.count * unit_.bytes,
                                                       cudaMemcpyDeviceToDevice, own),
                            "cudaMemcpyAsync");
    case StepKind::kAdd:
      return operations_->add(unit_.element, target(step.target), source(step.source),
                              step.source.count, own);
    case StepKind::kCopyRows:
    case StepKind::kAddRows:
      return rows_[index]->move(target(step.target), source(step.source), own);
  }
}

// What the caller puts into its stream from now on comes after the run.
void StreamedExchange::finish_putting_in() {
  messages_end_.record(stream(Lane::kMessages));
  local_end_.record(stream(Lane::kLocal));
  messages_end_.hold_back(caller_);
  local_end_.hold_back(caller_);
}

std::string StreamedExchange::waiting_for() const {
  size_t first = 0;
  while (first < next_ && !(is_pending_ && first + 1 == next_) && over_[first].reached()) ++first;
  // A group matters more than local steps before it, which wait for nobody else.
  while (first < order_.launches.size() && order_.launches[first].lane == Lane::kLocal) ++first;
  std::string text = fmt::format("'{}'", what_);
  if (first < order_.launches.size()) text += describe_group(first);
  const std::string behind =
      communicator_.meeting().behind(num_begun_, communicator_.local_members());
  return behind.empty() ? text : fmt::format("{}; not begun by {}", text, behind);
}

std::string StreamedExchange::describe_group(size_t index) const {
  constexpr int32_t kShown = 4;
  const Launch& launch = order_.launches[index];
  int64_t number = 1;
  for (size_t i = 0; i < index; ++i) number += order_.launches[i].lane == Lane::kMessages ? 1 : 0;
  std::string text = fmt::format(", group {} of {}, waiting for ", number, num_groups());
  for (int32_t k = 0; k < std::min(kShown, launch.count); ++k) {
    const Step& step = steps_.steps[order_.steps[launch.first + k]];
    const bool sends = step.kind == StepKind::kSend;
    text +=
        fmt::format("{}rank {} ({}, {} bytes)", k == 0 ? "" : ", ",
                    communicator_.meeting().members()[step.peer].value, sends ? "send" : "receive",
                    (sends ? step.source : step.target).count * unit_.bytes);
  }
  if (launch.count > kShown) text += fmt::format(" and {} more", launch.count - kShown);
  return text;
}

void wait(StreamedExchange& exchange, double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  constexpr int64_t kWatched = 64;  // pauses between two looks at the world
  int64_t num_pauses = 0;
  for (Pause pause; !exchange.advance(); pause()) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool is_late = seconds > timeout_seconds;
    if (!is_late && ++num_pauses % kWatched != 0) continue;
    const std::string failure = exchange.communicator().failure();
    if (failure.empty() && !is_late) continue;
    const std::string where = exchange.waiting_for();  // as long as the run still stands there
    exchange.communicator().abort();
    if (!failure.empty()) throw CommError(fmt::format("{} (in {})", failure, where));
    throw CommError(fmt::format("rank {}: timed out after {:.1f} s in {}",
                                exchange.communicator().rank().value, timeout_seconds, where));
  }
}

}  // namespace piper::nccl
