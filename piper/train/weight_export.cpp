#include <fmt/format.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_saver.h>
#include <piper/train/weight_export.h>

#include <filesystem>

namespace piper::train {

namespace fs = std::filesystem;

void WeightExport::add(RankTrainer& trainer, comm::Transport& transport, int64_t number,
                       const std::string& token) {
  const fs::path pieces = run_.request.folder / ("weights.tmp-" + token);
  std::vector<nn::NamedTensor> mine;
  for (const nn::NamedPiece& piece : trainer.stage().named_pieces())
    mine.push_back(nn::in_file({piece.name, piece.value.contiguous().clone(), piece.part}));
  if (!agree_finite(run_, mine, transport, {kGatherKeys + 8, kGatherKeys + 9},
                    fmt::format("step {} is not exported", number),
                    fmt::format("{} is as it was; lower --learning-rate, or look at the weights "
                                "that the run began with",
                                (run_.request.folder / "weights").string()))) {
    // Rank 0 has failed; no operation would follow in which this rank hears of it.
    barrier(transport, kGatherKeys + 11, run_.request.options.timeout_seconds);
    return;
  }
  if (!run_.is_first()) {
    fs::create_directories(pieces);
    checkpoint::write_safetensors(pieces / checkpoint::shard_name(trainer.rank().value), mine);
    mine.clear();
  }
  barrier(transport, kGatherKeys + 3, run_.request.options.timeout_seconds);
  const std::lock_guard lock(mutex_);
  pieces_.insert(pieces_.end(), mine.begin(), mine.end());
  if (trainer.rank() != Rank(0) || run_.is_alone()) return;
  for (int64_t r = std::ssize(run_.world.local_ranks()); r < run_.world.size(); ++r) {
    const checkpoint::SafetensorsFile file(pieces / checkpoint::shard_name(r));
    for (const checkpoint::TensorEntry& entry : file.tensors()) {
      pieces_.push_back({entry.name, at::empty(entry.shape, checkpoint::scalar_type(entry.dtype))});
      file.read(entry, pieces_.back().value);
    }
  }
  fs::remove_all(pieces);
}

void WeightExport::write() const {
  if (pieces_.empty()) return;
  checkpoint::export_weights(
      run_.request.folder / kFolder,
      checkpoint::config_with_modules(run_.request.config, run_.request.model),
      checkpoint::with_module_tables(nn::put_together(pieces_), run_.request.model));
}

}  // namespace piper::train
