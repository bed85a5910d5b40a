// Bytes that a segment keeps and needs: exact, and held to the counting allocator by nn's tests.
#pragma once

#include <piper/model/model.h>
#include <piper/schedule/step.h>
#include <piper/strategy/strategy.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace piper::cost {

// Experts with alike many rows: each takes half to all of the rows of the class before it. A thin
// product is not a part of a thick one, so that neither the number of experts nor the sum of their
// rows would do.
struct ExpertsOfSize {
  int32_t num_experts = 0;
  int64_t rows = 0;  // of all of them
};

// Over how many ranks a layer's matrices and a micro-batch's tokens are divided.
struct WorkDivision {
  int64_t context = 1;   // a sequence: of all tokens
  bool is_ring = false;  // those ranks' keys and values pass round a ring (strategy::has_ring)
  int64_t tensor = 1;    // matrices of attention and dense nets; the head's tokens
  int64_t tokens = 1;    // tokens between the blocks: as many, or all ranks of `tensor` hold all
  int64_t routed = 1;    // tokens of a mixture layer: gate, shared experts, merge
  int64_t experts = 1;   // an expert's matrices
  bool gathers_rows = false;    // those ranks have rows of their own, else all of them the same
  int64_t gated = 1;            // strategy::ranks_per_gated_token_set
  bool fuses_exchange = false;  // those ranks are all sent the rows of an expert
  int64_t rows = 1;             // of the tokens that ranks of `tensor` route alike: among them
  int64_t copies = 1;           // strategy::copies_of_rows
  int64_t copied_experts = 0;   // that a rank holds beside those whose home it is
  int64_t peers = 0;            // strategy::grouped_peers
  int64_t groups = 1;           // of these
  auto operator<=>(const WorkDivision&) const = default;
};
WorkDivision work_division(const strategy::Strategy& strategy);

// The work of one segment execution on one rank.
class GroupedChoice;

struct SegmentWork {
  int64_t sequences = 0;  // B of the micro-batch
  int64_t sequence = 0;   // S
  WorkDivision by;
  int64_t rows = 0;           // rows this rank sends (gate, merge): T * k, less what is dropped
  int64_t others_rows = 0;    // of the same tokens, those that ranks which divide them send
  int64_t received_rows = 0;  // R (experts); balanced: as many
  // Where ranks share an expert's matrices and have rows of their own: what they have received
  // together, with which the experts compute.
  int64_t gathered_rows = 0;
  int64_t largest_expert_rows = 0;  // of the local experts; balanced: an equal part of those
  // The local experts with rows beside the largest, by size; all empty: they share what is left
  // evenly.
  std::array<ExpertsOfSize, 8> other_experts;
  // U, where tokens travel in place of their copies (strategy::deduplicates): one for each token of
  // a member; else -1
  int64_t received_tokens = -1;
  // How many tokens a chunk of a mixture layer's tokens has (work_of_chunk); -1: all tokens.
  int64_t chunk_tokens = -1;
  int64_t local_experts = 0;
  int64_t element_bytes = 4;
  // Where a device that has one product for all experts uses it; outlives this. Else null.
  const GroupedChoice* grouped = nullptr;
  // What attention and dense nets compute with.
  int64_t all_tokens() const { return sequences * sequence / by.context; }
  int64_t tokens() const { return sequences * sequence / by.tokens; }  // between the blocks
  int64_t routed_tokens() const { return sequences * sequence / by.routed; }
  // Those whose rows this rank sends: routed tokens of all ranks that gather them.
  int64_t gated_tokens() const { return routed_tokens() * by.gated; }
  // Tokens of this rank alone: the head's, and those by which gradients of what is held whole count
  // here.
  int64_t own_tokens() const { return all_tokens() / by.tensor; }
  // Whether routed tokens are parts of sequences.
  bool cuts_sequences() const { return by.context > 1 || sequences % by.routed != 0; }
  // Those of which this rank has tokens.
  int64_t counted_sequences() const {
    const int64_t ranks = by.routed / by.context;
    return sequences % ranks == 0 ? sequences / ranks : sequences;
  }
  // Whose copies the rows are.
  int64_t tokens_of_rows() const { return chunk_tokens < 0 ? gated_tokens() : chunk_tokens; }
  int64_t merged_rows() const { return rows + others_rows; }
  bool deduplicated() const { return received_tokens >= 0; }
  // Ranks that each row is sent to.
  int64_t receivers() const { return by.fuses_exchange ? by.experts : 1; }
  int64_t computed_rows() const { return by.gathers_rows ? gathered_rows : received_rows; }
};

// The work of chunk 1 to `num_chunks` of the tokens (strategy::token_chunk), where every chunk
// routes as all of them do, or of the peers, each of which is sent as much. Chunk 0 is all
// (schedule::Segment::chunk).
SegmentWork work_of_chunk(const SegmentWork& all, int64_t chunk, int64_t num_chunks);

struct SegmentBytes {
  int64_t tape = 0;  // SlotKind::kTape
  int64_t forward_transient =
      0;  // peak above inputs, outputs and tape while the forward runs; a forward that keeps no
          // tape needs forward_transient + tape above inputs and outputs
  int64_t backward_transient =
      0;  // peak above inputs, outputs (input gradients) and tape while the backward runs
  // A backward in two parts: `deferred` is what SlotKind::kDeferred holds for the weights' part
  // beyond the tape's bytes; the others are peaks above inputs, outputs, tape and it while either
  // part runs.
  int64_t deferred = 0;
  int64_t input_transient = 0, weights_transient = 0;
};

// Rows of a bf16 product that are formed at once before they are added to an fp32 main gradient.
inline constexpr int64_t kGradientRowsAtOnce = 256;

// Tokens whose logits the head holds at a time: at most 2^22 logits, at least 64 tokens.
inline int64_t head_chunk_rows(int64_t vocabulary, int64_t tokens) {
  return std::min(tokens, std::max(int64_t{64}, (int64_t{1} << 22) / vocabulary));
}

SegmentBytes segment_bytes(const model::Model& model, const schedule::Segment& segment,
                           const SegmentWork& work);

// Elements of a token's keys and values as context parallelism gathers them: of the heads that one
// of `tensor_ranks` has; of latent attention the latent and the key that all heads share.
int64_t key_value_width(const model::Attention& attention, int64_t tensor_ranks);

// Rows of hidden states, or of experts, that all ranks together have in a gather or a sum of a
// segment of this kind (schedule::moves_rows, but for keys, values and choices).
int64_t rows_of_all(schedule::SegmentKind collective, const SegmentWork& work);

// Beside a sum (reduce-scatter or all-reduce) of hidden states (SegmentKind::kTensor), keys and
// values (kContext) or experts' rows (kExpertTensor): the others' parts of a rank's own share, two
// pieces of each at a time (comm/operations.h).
int64_t sum_scratch(const model::Model& model, const schedule::Segment& segment,
                    const SegmentWork& work);

// Beside an exchange over ep x etp (strategy::fuses_exchange): the rows as they are sent to each
// rank, or their parts as they come back; 0 where none is.
int64_t fused_exchange_scratch(const model::Model& model, const SegmentWork& work);

// Bytes of a slot of this kind.
int64_t slot_bytes(const model::Model& model, const schedule::SlotMeaning& slot,
                   const SegmentWork& work);

}  // namespace piper::cost
