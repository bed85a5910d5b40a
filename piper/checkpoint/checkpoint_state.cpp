#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/optim/parameter_share.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <map>
#include <string>

namespace piper::checkpoint {
namespace {

constexpr const char* kNumSteps = "optimizer/num_steps";

// What an optimizer's tensor has of a piece of its parameter; undefined value: nothing.
nn::NamedTensor common_part(const nn::NamedTensor& state, const nn::NamedPiece& piece,
                            const nn::Parameter& parameter) {
  PIPER_CHECK(piece.value.is_contiguous() && state.value.is_contiguous(), piece.name);
  // Elements of the parameter: those of the piece, those that the state is of.
  const int64_t first = piece.value.storage_offset() - parameter.value.storage_offset(),
                last = first + piece.value.numel();
  const int64_t held = state.part ? state.part->begin : 0;
  const int64_t begin = std::max(first, held), end = std::min(last, held + state.value.numel());
  nn::NamedTensor common{.part = piece.part};
  if (begin >= end) return common;
  common.value = state.value.view({-1}).narrow(0, begin - held, end - begin);
  if (begin == first && end == last) {
    common.value = common.value.view(piece.value.sizes());
  } else {
    const nn::TensorPart whole =
        piece.part ? *piece.part : nn::whole_tensor(piece.value.sizes().vec());
    common.part = nn::elements_of(whole, begin - first, end - first);
  }
  return common;
}

class StateWriter {
 public:
  StateWriter(nn::Stage& stage, const optim::AdamW& optimizer)
      : parameters_(stage.parameters()), is_divided_(optimizer.is_divided()) {
    for (nn::NamedTensor& tensor : optimizer.state()) optimizer_.emplace(tensor.name, tensor);
  }

  // `is_mine`: of replicas this rank writes the piece; else only what it alone has of it.
  void add_piece(const nn::NamedPiece& piece, bool is_mine = true) {
    const nn::Parameter& parameter = parameters_.at(piece.parameter);
    if (is_mine) tensors_.push_back({"parameter/" + piece.name, piece.value, piece.part});
    for (const char* kind : {"first_moment/", "second_moment/", "master/"}) {
      const auto state = optimizer_.find(kind + parameter.name);
      if (state == optimizer_.end() || (!is_mine && !is_divided_)) continue;
      nn::NamedTensor common = common_part(state->second, piece, parameter);
      common.name = kind + piece.name;
      if (common.value.defined()) tensors_.push_back(std::move(common));
    }
  }
  void add_num_steps() { tensors_.push_back(optimizer_.at(kNumSteps)); }
  const nn::Parameter& parameter_of(const nn::NamedPiece& piece) const {
    return parameters_.at(piece.parameter);
  }
  std::vector<nn::NamedTensor> take() { return std::move(tensors_); }

 private:
  const std::vector<nn::Parameter>& parameters_;
  std::map<std::string, nn::NamedTensor> optimizer_;
  bool is_divided_;  // among replicas
  std::vector<nn::NamedTensor> tensors_;
};

}  // namespace

std::vector<nn::NamedTensor> state_tensors(nn::Stage& stage, const optim::AdamW& optimizer) {
  StateWriter writer(stage, optimizer);
  for (const nn::NamedPiece& piece : stage.named_pieces()) writer.add_piece(piece);
  writer.add_num_steps();
  return writer.take();
}

std::vector<nn::NamedTensor> written_tensors(nn::Stage& stage, const optim::AdamW& optimizer,
                                             const strategy::Mesh& mesh, Rank rank) {
  const strategy::RankLayout layout(mesh);
  const at::Tensor tied = layout.stage(rank) > 0 ? stage.tied_embedding_gradient() : at::Tensor();
  StateWriter writer(stage, optimizer);
  int64_t index = 0;  // the same for a piece and its replicas
  for (const nn::NamedPiece& piece : stage.named_pieces()) {
    const strategy::Axis replicas = writer.parameter_of(piece).sharding.replicas;
    const bool mine =
        index++ % layout.size(replicas) == optim::index_among_replicas(layout, replicas, rank);
    const bool first_stage_has_it = tied.defined() && piece.gradient.is_alias_of(tied) &&
                                    piece.gradient.storage_offset() == tied.storage_offset();
    if (!first_stage_has_it) writer.add_piece(piece, mine);
  }
  if (rank == Rank(0)) writer.add_num_steps();
  std::vector<nn::NamedTensor> written = writer.take();
  for (nn::NamedTensor& tensor : written) tensor = nn::in_file(std::move(tensor));
  return written;
}

}  // namespace piper::checkpoint
