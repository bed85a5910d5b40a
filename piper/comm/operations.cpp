#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/collective/all_to_all_flat.h>
#include <piper/collective/reduce_scatter_direct.h>
#include <piper/comm/element.h>
#include <piper/comm/operations.h>
#include <piper/comm/step_executor.h>

#include <chrono>

namespace piper::comm {
namespace {

using collective::Buffer;
using collective::MemberSteps;
using collective::Step;
using collective::StepKind;

// A piece of a reduction is large enough to hide the cost of a message, and small enough that a
// piece of every peer stays in a core's cache.
constexpr int64_t kPieceElements = 1 << 15;

std::shared_ptr<std::byte> make_scratch(int64_t bytes, const Allocate& allocate) {
  if (bytes == 0) return nullptr;
  if (allocate) return allocate(bytes);
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

// One message: member 0 is this rank, member 1 the peer.
std::unique_ptr<Operation> start_message(Transport& transport, Rank peer, OperationName name,
                                         StepKind kind, ExecutionBuffers buffers) {
  MemberSteps steps{.input_count = static_cast<int64_t>(buffers.input.size()),
                    .output_count = static_cast<int64_t>(buffers.output.size())};
  steps.steps = {{.kind = kind,
                  .peer = 1,
                  .source = {Buffer::kInput, 0, steps.input_count},
                  .target = {Buffer::kOutput, 0, steps.output_count}}};
  return std::make_unique<StepExecutor>(transport, Group{{transport.rank(), peer}, 0},
                                        std::move(name), std::move(steps), std::move(buffers),
                                        Unit{});
}

class Both final : public Operation {
 public:
  Both(std::unique_ptr<Operation> one, std::unique_ptr<Operation> other)
      : one_(std::move(one)), other_(std::move(other)) {}

  bool advance() override {
    if (one_ && one_->advance()) one_.reset();
    if (other_ && other_->advance()) other_.reset();
    return !one_ && !other_;
  }
  std::string waiting_for() const override {
    return one_ ? one_->waiting_for() : other_ ? other_->waiting_for() : "nothing";
  }

 private:
  std::unique_ptr<Operation> one_, other_;  // null: done
};

// An all-reduce over nodes, piece by piece; the next one starts where one of the two under way is
// done.
class PiecewiseSum final : public Operation {
 public:
  PiecewiseSum(Transport& transport, Group group, OperationName name, Element element,
               std::span<std::byte> buffer, const collective::Topology& topology, Allocate allocate)
      : transport_(transport),
        group_(std::move(group)),
        name_(std::move(name)),
        unit_{size_of(element), element},
        buffer_(buffer),
        topology_(topology),
        allocate_(std::move(allocate)),
        count_(std::ssize(buffer) / unit_.bytes),
        num_pieces_(collective::num_reduction_pieces(count_)) {
    advance();
  }

  bool advance() override {
    for (std::unique_ptr<Operation>& piece : under_way_)
      while (!piece || piece->advance()) {
        piece.reset();
        if (next_ == num_pieces_) break;
        piece = start(next_++);
      }
    return !under_way_[0] && !under_way_[1];
  }
  std::string waiting_for() const override {
    for (const std::unique_ptr<Operation>& piece : under_way_)
      if (piece) return piece->waiting_for();
    return "nothing";
  }

 private:
  std::unique_ptr<Operation> start(int64_t piece) {
    const int64_t begin = collective::reduction_piece_begin(count_, piece, num_pieces_);
    const int64_t end = collective::reduction_piece_begin(count_, piece + 1, num_pieces_);
    MemberSteps steps = collective::all_reduce_hierarchical(group_.index, topology_, end - begin);
    // Both pieces' messages are under way at once: the parts of one follow those of the one before.
    const auto parts = static_cast<uint32_t>(2 * group_.members.size() + 1);
    for (Step& step : steps.steps) step.part += static_cast<uint32_t>(piece) * parts;
    ExecutionBuffers buffers{.output =
                                 buffer_.subspan(static_cast<size_t>(begin * unit_.bytes),
                                                 static_cast<size_t>((end - begin) * unit_.bytes))};
    buffers.scratch = make_scratch(steps.scratch_count * unit_.bytes, allocate_);
    return std::make_unique<StepExecutor>(transport_, group_, name_, std::move(steps),
                                          std::move(buffers), unit_);
  }

  Transport& transport_;
  Group group_;
  OperationName name_;
  Unit unit_;
  std::span<std::byte> buffer_;
  collective::Topology topology_;
  Allocate allocate_;
  int64_t count_, num_pieces_, next_ = 0;
  std::unique_ptr<Operation> under_way_[2];
};

void check_group(const Transport& transport, const Group& group, const std::string& what) {
  PIPER_CHECK(group.index >= 0 && group.index < static_cast<int64_t>(group.members.size()) &&
                  group.members[group.index] == transport.rank(),
              "rank " + std::to_string(transport.rank().value) + " in the group of " + what);
}

int64_t num_elements(std::span<std::byte> buffer, Element element, const std::string& what) {
  PIPER_CHECK(std::ssize(buffer) % size_of(element) == 0, what);
  return std::ssize(buffer) / size_of(element);
}

}  // namespace

std::unique_ptr<Operation> start_send(Transport& transport, Rank peer, OperationName name,
                                      std::span<const std::byte> bytes) {
  return start_message(transport, peer, std::move(name), StepKind::kSend, {.input = bytes});
}

std::unique_ptr<Operation> start_receive(Transport& transport, Rank peer, OperationName name,
                                         std::span<std::byte> bytes) {
  return start_message(transport, peer, std::move(name), StepKind::kReceive, {.output = bytes});
}

std::unique_ptr<Operation> start_exchange_counts(Transport& transport, const Group& group,
                                                 OperationName name, int64_t count,
                                                 std::span<const int64_t> send,
                                                 std::span<int64_t> received) {
  const std::vector<int64_t> bytes(group.members.size(),
                                   count * static_cast<int64_t>(sizeof(int64_t)));
  return start_all_to_all(transport, group, std::move(name), std::as_bytes(send), bytes,
                          std::as_writable_bytes(received), bytes);
}

std::unique_ptr<Operation> start_all_to_all(Transport& transport, const Group& group,
                                            OperationName name, std::span<const std::byte> send,
                                            std::vector<int64_t> send_bytes,
                                            std::span<std::byte> receive,
                                            std::vector<int64_t> receive_bytes) {
  check_group(transport, group, name.what);
  PIPER_CHECK(
      send_bytes.size() == group.members.size() && receive_bytes.size() == group.members.size(),
      name.what);
  return std::make_unique<StepExecutor>(
      transport, group, std::move(name),
      collective::all_to_all_flat(group.index, send_bytes, receive_bytes),
      ExecutionBuffers{.input = send, .output = receive}, Unit{});
}

std::unique_ptr<Operation> start_all_reduce(Transport& transport, const Group& group,
                                            OperationName name, Element element,
                                            std::span<std::byte> buffer, const Allocate& allocate) {
  check_group(transport, group, name.what);
  const Unit unit{size_of(element), element};
  PIPER_CHECK(buffer.size() % unit.bytes == 0, name.what);
  MemberSteps steps = collective::all_reduce_direct(
      group.index, static_cast<int64_t>(group.members.size()),
      static_cast<int64_t>(buffer.size()) / unit.bytes, kPieceElements);
  ExecutionBuffers buffers{.output = buffer};
  buffers.scratch = make_scratch(steps.scratch_count * unit.bytes, allocate);
  return std::make_unique<StepExecutor>(transport, group, std::move(name), std::move(steps),
                                        std::move(buffers), unit);
}

std::unique_ptr<Operation> start_hierarchical_all_reduce(Transport& transport, const Group& group,
                                                         OperationName name, Element element,
                                                         std::span<std::byte> buffer,
                                                         const collective::Topology& topology,
                                                         const Allocate& allocate) {
  check_group(transport, group, name.what);
  PIPER_CHECK(buffer.size() % static_cast<size_t>(size_of(element)) == 0, name.what);
  return std::make_unique<PiecewiseSum>(transport, group, std::move(name), element, buffer,
                                        topology, allocate);
}

std::unique_ptr<Operation> start_reduce_scatter(Transport& transport, const Group& group,
                                                OperationName name, Element element,
                                                std::span<std::byte> buffer,
                                                collective::ReductionAlgorithm algorithm,
                                                const collective::Topology& topology,
                                                const Allocate& allocate) {
  check_group(transport, group, name.what);
  const int64_t count = num_elements(buffer, element, name.what);
  MemberSteps steps = algorithm == collective::ReductionAlgorithm::kDirect
                          ? collective::reduce_scatter_direct(
                                group.index, std::ssize(group.members), count, kPieceElements)
                          : collective::reduce_scatter(algorithm, group.index, topology, count);
  const Unit unit{size_of(element), element};
  ExecutionBuffers buffers{.output = buffer};
  buffers.scratch = make_scratch(steps.scratch_count * unit.bytes, allocate);
  return std::make_unique<StepExecutor>(transport, group, std::move(name), std::move(steps),
                                        std::move(buffers), unit);
}

std::unique_ptr<Operation> start_reduce_scatter(Transport& transport, const Group& group,
                                                OperationName name, Element element,
                                                std::span<std::byte> buffer,
                                                std::span<const int64_t> counts,
                                                const Allocate& allocate) {
  check_group(transport, group, name.what);
  PIPER_CHECK(std::ssize(counts) == std::ssize(group.members), name.what);
  MemberSteps steps = collective::reduce_scatter_direct(group.index, counts, kPieceElements);
  PIPER_CHECK(steps.output_count == num_elements(buffer, element, name.what), name.what);
  const Unit unit{size_of(element), element};
  ExecutionBuffers buffers{.output = buffer};
  buffers.scratch = make_scratch(steps.scratch_count * unit.bytes, allocate);
  return std::make_unique<StepExecutor>(transport, group, std::move(name), std::move(steps),
                                        std::move(buffers), unit);
}

std::unique_ptr<Operation> start_all_gather(Transport& transport, const Group& group,
                                            OperationName name, Element element,
                                            std::span<std::byte> buffer,
                                            collective::ReductionAlgorithm algorithm,
                                            const collective::Topology& topology) {
  check_group(transport, group, name.what);
  const int64_t count = num_elements(buffer, element, name.what);
  return std::make_unique<StepExecutor>(
      transport, group, std::move(name),
      collective::all_gather(algorithm, group.index, topology, count),
      ExecutionBuffers{.output = buffer}, Unit{size_of(element), element});
}

std::unique_ptr<RepeatedOperation> make_exchange(Transport& transport, const Group& group,
                                                 std::string what, MemberSteps steps,
                                                 std::span<const std::byte> input,
                                                 std::span<std::byte> output,
                                                 const Allocate& allocate,
                                                 std::optional<Element> element) {
  check_group(transport, group, what);
  const Unit unit = element ? Unit{size_of(*element), *element} : Unit{};
  ExecutionBuffers buffers{input, output, make_scratch(steps.scratch_count * unit.bytes, allocate)};
  return std::make_unique<StepExecutor>(transport, group, std::move(what), std::move(steps),
                                        std::move(buffers), unit);
}

std::unique_ptr<Operation> join(std::unique_ptr<Operation> one, std::unique_ptr<Operation> other) {
  return std::make_unique<Both>(std::move(one), std::move(other));
}

void wait(Transport& transport, Operation& operation, double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  // No count of completions is this large: the first call only reads it.
  uint64_t seen = transport.wait_completion(~uint64_t{0}, 0);
  const auto advance = [&] {
    try {
      return operation.advance();
    } catch (const MessageError&) {
      throw;
    } catch (const CommError& error) {
      // A failure that was noticed between messages does not know what it stopped.
      throw CommError(fmt::format("{} (in {})", error.what(), operation.waiting_for()));
    }
  };
  while (!advance()) {
    const double left =
        timeout_seconds - std::chrono::duration<double>(Clock::now() - begin).count();
    const uint64_t now = left > 0 ? transport.wait_completion(seen, left) : seen;
    if (now == seen) {
      if (advance()) return;  // messages that have come without waking are not waited for
      const std::string unmatched = transport.unmatched();
      throw CommError(fmt::format("rank {}: timed out after {:.1f} s in {}{}",
                                  transport.rank().value, timeout_seconds, operation.waiting_for(),
                                  unmatched.empty() ? "" : " (unmatched: " + unmatched + ")"));
    }
    seen = now;
  }
}

}  // namespace piper::comm
