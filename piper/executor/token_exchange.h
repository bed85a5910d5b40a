// The exchanges of one mixture layer in one micro-batch where tokens travel in place of their
// copies (strategy::deduplicates; collective/halo_dedup.h), on one rank:
//
//   counts      what members tell each other of routes (collective/known_routes.h)
//   to experts  tokens [T, D] to rows [U, D]; dispatch forward and, of the output's gradient,
//               combine backward. The forward dispatch brings the weights of the copies beside
//               them, straight from each rank to each: [N] to [R]
//   back        rows [U, D], added on the way, to tokens [T, D]; combine forward and dispatch
//               backward, which brings the gradients of the weights back: [R] to [N]
//
// What was told and the weights are kept for the micro-batch's recomputation, which asks for tokens
// only.
//
// Thread safety: as its executor's.
#pragma once

#include <piper/collective/known_routes.h>
#include <piper/comm/operations.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace piper::executor {

class TokenExchange {
 public:
  // `transport`: of what members tell each other; `tensors`: of rows, where these are. `topology`:
  // of the group's members. `chunk_bytes`: of a message at most; 0 = uncut. `scratch`: beside
  // tensors.
  TokenExchange(comm::Transport& transport, comm::Transport& tensors, comm::Group group,
                const collective::Topology& topology, int64_t chunk_bytes, comm::Allocate scratch);

  std::unique_ptr<comm::Operation> start_telling(comm::OperationName name,
                                                 const nn::Routing& routing, int64_t row_bytes);
  // After that: fills the routing's received rows. `is_new`: of a forward; else of its
  // recomputation, with the weights.
  void hear(nn::Routing& routing, bool is_new);

  // `output` is made here: its rows are known from what was heard. Where `weights` is given, they
  // travel, too.
  std::unique_ptr<comm::Operation> start_to_experts(comm::OperationName name,
                                                    const at::Tensor& tokens_TD, at::Tensor& output,
                                                    nn::Routing* weights);
  // Where `g_weights` is given it becomes the gradient of the weights.
  std::unique_ptr<comm::Operation> start_back(comm::OperationName name, const at::Tensor& rows_UD,
                                              at::Tensor& output, const nn::Routing& routing,
                                              at::Tensor* g_weights);

  // Returns the numbers of this rank's distinct tokens (collective::distinct_tokens).
  std::vector<int64_t> distinct() const;

 private:
  collective::Dedup dedup(int64_t row_count) const;
  std::unique_ptr<comm::Operation> start_weights(const comm::OperationName& name,
                                                 const nn::Routing& routing, bool to_experts,
                                                 const at::Tensor& from, const at::Tensor& to);

  comm::Transport& transport_;
  comm::Transport& tensors_;
  comm::Group group_;
  collective::Topology topology_;
  collective::Units units_;
  int64_t chunk_bytes_;
  comm::Allocate scratch_;
  collective::RoutesShape shape_;
  std::vector<std::byte> told_, heard_;
  std::vector<int64_t> told_bytes_, heard_bytes_;  // by member
  std::optional<collective::KnownRoutes> known_;
  at::Tensor weights_R_;
};

}  // namespace piper::executor
