// Collective operations over a group of ranks as steps that make progress: posted once, then
// advanced by advance() until done. Built on collective/'s steps, executed on plain buffers; no
// tensor library.
#pragma once

#include <piper/collective/reductions.h>
#include <piper/collective/steps.h>
#include <piper/collective/topology.h>
#include <piper/comm/transport.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

// In flight on one rank. Buffers given to the starters stay alive and untouched until done, or
// until the operation is destroyed: dropped unfinished, it withdraws what it has posted, and the
// peers wait in vain.
class Operation {
 public:
  virtual ~Operation() = default;
  // Does what can be done without blocking; true when finished. Only the rank's own thread calls
  // it. Throws CommError when a rank has failed or the sizes of a send and its receive differ.
  virtual bool advance() = 0;
  // "'F3 L2 dispatch', waiting for rank 2 (receive, 4096 bytes)" - for timeouts.
  virtual std::string waiting_for() const = 0;
};

// One that is executed again and again on the same buffers, with everything it needs kept: from the
// second time on it allocates nothing itself.
class RepeatedOperation : public Operation {
 public:
  // Begins once more. Requires that it is done (or was never started); `key` is as
  // OperationName's, a new one each time. Throws CommError.
  virtual void start(uint64_t key) = 0;
};

struct Group {
  std::vector<Rank> members;  // the same order on every member
  int64_t index = 0;          // of this rank in members
};

enum class Element { kFloat32, kFloat64, kInt64, kBFloat16 };

std::unique_ptr<Operation> start_send(Transport&, Rank peer, OperationName,
                                      std::span<const std::byte>);
std::unique_ptr<Operation> start_receive(Transport&, Rank peer, OperationName,
                                         std::span<std::byte>);

// Every member sends `count` int64 to every member: send[i*count ...] goes to member i;
// received[i*count ...] came from member i.
std::unique_ptr<Operation> start_exchange_counts(Transport&, const Group&, OperationName,
                                                 int64_t count, std::span<const int64_t> send,
                                                 std::span<int64_t> received);

// Uneven all-to-all: send_bytes[i] to member i, taken from `send` back to back; the same for
// receive. Zero sizes are fine. The part for itself is copied.
std::unique_ptr<Operation> start_all_to_all(Transport&, const Group&, OperationName,
                                            std::span<const std::byte> send,
                                            std::vector<int64_t> send_bytes,
                                            std::span<std::byte> receive,
                                            std::vector<int64_t> receive_bytes);

// In place: buffer := sum over members, added in ascending member order whatever the arrival order
// (bit-equal on every member and on every transport; fp32 sums accumulate in fp32). Reduce-scatter,
// then all-gather; each member owns one contiguous share. Scratch: two pieces of 32 Ki
// elements for every peer at most, and never more than (group - 1) shares; allocated through
// `allocate` when given (so that it can be counted) and released with the operation. int64 sums
// wrap. `buffer` is aligned for its elements.
using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
std::unique_ptr<Operation> start_all_reduce(Transport&, const Group&, OperationName, Element,
                                            std::span<std::byte> buffer,
                                            const Allocate& allocate = {});

// The same over nodes (collective/all_reduce_hierarchical.h): inside them first, so that one sum of
// a node crosses. Bit-equal on every member and transport, in another order of addition. In pieces,
// two of them under way. `topology`: of the members.
std::unique_ptr<Operation> start_hierarchical_all_reduce(Transport&, const Group&, OperationName,
                                                         Element, std::span<std::byte> buffer,
                                                         const collective::Topology& topology,
                                                         const Allocate& allocate = {});

// The two halves of an all-reduce. Both work in place on `buffer`, which is cut into one share a
// member (collective::reduce_share, in elements). After a reduce-scatter the own share is the sum,
// to the bit what the all-reduce by this algorithm leaves there (kDirect: start_all_reduce,
// kHierarchical: start_hierarchical_all_reduce); other shares are what they were or partial sums.
// An all-gather brings every member's own share to everyone; no element is changed. `topology`: of
// the members. Scratch of the reduce-scatter: directly two pieces of 32 Ki elements for every peer
// at most; else what collective/'s headers say of the algorithm.
std::unique_ptr<Operation> start_reduce_scatter(Transport&, const Group&, OperationName, Element,
                                                std::span<std::byte> buffer,
                                                collective::ReductionAlgorithm algorithm,
                                                const collective::Topology& topology,
                                                const Allocate& allocate = {});
std::unique_ptr<Operation> start_all_gather(Transport&, const Group&, OperationName, Element,
                                            std::span<std::byte> buffer,
                                            collective::ReductionAlgorithm algorithm,
                                            const collective::Topology& topology);
// The former, directly, of shares of any sizes: `counts` elements by member, back to back.
std::unique_ptr<Operation> start_reduce_scatter(Transport&, const Group&, OperationName, Element,
                                                std::span<std::byte> buffer,
                                                std::span<const int64_t> counts,
                                                const Allocate& allocate = {});

// Executes a member's steps of any collective, e.g. an algorithm of collective/algorithms.h. Their
// units are bytes, or where `unit` is given elements, which steps may add. Every member makes it
// with its own steps of the same collective; buffers are as large as the steps say and stay alive
// with the operation, the scratch of the steps is its own.
std::unique_ptr<RepeatedOperation> make_exchange(Transport&, const Group&, std::string what,
                                                 collective::MemberSteps steps,
                                                 std::span<const std::byte> input,
                                                 std::span<std::byte> output,
                                                 const Allocate& allocate = {},
                                                 std::optional<Element> unit = {});

// Two that have been started, as one: done when both are. Where they share a key, the parts of
// their messages differ.
std::unique_ptr<Operation> join(std::unique_ptr<Operation> one, std::unique_ptr<Operation> other);

// Advances until done, sleeping between completions; throws CommError after `timeout_seconds`
// naming rank, operation, peer and bytes: "rank 1: timed out after 2.0 s in 'F3 L2 dispatch',
// waiting for rank 2 (receive, 4096 bytes)", and what of all ranks is unmatched where the transport
// knows.
void wait(Transport&, Operation&, double timeout_seconds);

}  // namespace piper::comm
