// The bytes of one step of a real run, as the transport counted them, beside those that its
// prediction rests on: by pair of ranks, layer and direction.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/comm/counted_transport.h>
#include <piper/cost/sent_bytes.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::train {

// CountedBytes::key is step << 32 | operation (executor/executor.cpp).
inline constexpr int kOperationBits = 32;

// What all ranks counted in one step: by rank, the operations of that step.
using CountedTraffic = std::map<int64_t, std::vector<comm::CountedBytes>>;

struct TrafficRow {
  int64_t from = 0, to = 0;
  int64_t layer = -1;        // -1: of no layer (embedding, head, statistics, between stages)
  std::string what;          // "dispatch", "combine", "counts", "hidden", "gradients", "statistics"
  std::string phase;         // "forward", "recompute", "backward", "update"
  int64_t num_messages = 0;  // sent
  int64_t predicted_bytes = 0;
  int64_t sent_bytes = 0;      // as the sender's transport counted
  int64_t received_bytes = 0;  // as the receiver's did
  bool equal() const { return predicted_bytes == sent_bytes && sent_bytes == received_bytes; }
};

struct Traffic {
  int64_t step = 0;
  std::vector<TrafficRow> rows;  // ascending by from, to, layer, what, phase
  int64_t num_unequal() const;
  int64_t num_pairs() const;
  int64_t predicted_bytes() const;
  int64_t sent_bytes() const;
};

// `predicted` and `counted` are of the same step; operations that are none of the step's tasks
// throw InternalError.
Traffic compare_traffic(const schedule::StepGraph& step, int64_t number,
                        const std::vector<cost::SentBytes>& predicted,
                        const CountedTraffic& counted);

Json to_json(const Traffic& traffic);
// One line for the console, and one more for each of the first rows that differ.
std::string to_text(const Traffic& traffic);

}  // namespace piper::train
