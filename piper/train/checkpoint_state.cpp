#include <piper/base/error.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/checkpoint_state.h>
#include <piper/train/parameter_share.h>

#include <map>
#include <string>

namespace piper::train {
namespace {

constexpr const char* kNumSteps = "optimizer/num_steps";

// The same part of a tensor shaped like the piece's parameter.
at::Tensor same_part(const at::Tensor& state, const nn::NamedPiece& piece,
                     const nn::Parameter& parameter) {
  PIPER_CHECK(parameter.value.is_contiguous() && state.is_contiguous(), piece.name);
  const int64_t first = piece.value.storage_offset() - parameter.value.storage_offset();
  return state.as_strided(piece.value.sizes(), piece.value.strides(),
                          state.storage_offset() + first);
}

class Writer {
 public:
  Writer(nn::Stage& stage, const AdamW& optimizer) : parameters_(stage.parameters()) {
    for (NamedTensor& tensor : optimizer.state())
      optimizer_.emplace(std::move(tensor.name), std::move(tensor.value));
  }

  void add_piece(const nn::NamedPiece& piece) {
    const nn::Parameter& parameter = parameters_.at(piece.parameter);
    tensors_.push_back({"parameter/" + piece.name, piece.value, piece.part});
    for (const char* moment : {"first_moment/", "second_moment/"})
      tensors_.push_back({moment + piece.name,
                          same_part(optimizer_.at(moment + parameter.name), piece, parameter),
                          piece.part});
    if (const auto master = optimizer_.find("master/" + parameter.name); master != optimizer_.end())
      tensors_.push_back(
          {"master/" + piece.name, same_part(master->second, piece, parameter), piece.part});
  }
  void add_num_steps() { tensors_.push_back({kNumSteps, optimizer_.at(kNumSteps)}); }
  const nn::Parameter& parameter_of(const nn::NamedPiece& piece) const {
    return parameters_.at(piece.parameter);
  }
  std::vector<NamedTensor> take() { return std::move(tensors_); }

 private:
  const std::vector<nn::Parameter>& parameters_;
  std::map<std::string, at::Tensor> optimizer_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace

std::vector<NamedTensor> state_tensors(nn::Stage& stage, const AdamW& optimizer) {
  Writer writer(stage, optimizer);
  for (const nn::NamedPiece& piece : stage.named_pieces()) writer.add_piece(piece);
  writer.add_num_steps();
  return writer.take();
}

std::vector<NamedTensor> written_tensors(nn::Stage& stage, const AdamW& optimizer,
                                         const strategy::Mesh& mesh, Rank rank) {
  const strategy::RankLayout layout(mesh);
  const at::Tensor tied = layout.stage(rank) > 0 ? stage.tied_embedding_gradient() : at::Tensor();
  Writer writer(stage, optimizer);
  int64_t index = 0;  // the same for a piece and its replicas
  for (const nn::NamedPiece& piece : stage.named_pieces()) {
    const strategy::Axis replicas = writer.parameter_of(piece).sharding.replicas;
    const bool mine =
        index++ % layout.size(replicas) == index_among_replicas(layout, replicas, rank);
    const bool first_stage_has_it =
        tied.defined() && piece.gradient.const_data_ptr() == tied.const_data_ptr();
    if (mine && !first_stage_has_it) writer.add_piece(piece);
  }
  if (rank == Rank(0)) writer.add_num_steps();
  std::vector<NamedTensor> written = writer.take();
  for (NamedTensor& tensor : written) tensor = in_file(std::move(tensor));
  return written;
}

}  // namespace piper::train
