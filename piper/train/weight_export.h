// The final weights of a run as a Hugging Face folder, from the pieces that its ranks hold.
#pragma once

#include <piper/nn/named_tensor.h>
#include <piper/train/rank_trainer.h>
#include <piper/train/run_context.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace piper::train {

class WeightExport {
 public:
  static constexpr const char* kFolder = "weights";  // of the run's folder

  explicit WeightExport(const RunContext& run) : run_(run) {}

  // All ranks call it, with the gathered weights of step `number`, whose replicas are the same
  // bits. Other processes leave their pieces in files, which `token` names and process 0 reads.
  // Throws InvalidInput where a weight is not finite (then nothing is written), IoError, CommError.
  void add(RankTrainer& trainer, comm::Transport& transport, int64_t number,
           const std::string& token);
  // Process 0, after the ranks; nothing where nothing was added. Throws IoError.
  void write() const;

 private:
  const RunContext& run_;
  std::mutex mutex_;
  std::vector<nn::NamedTensor> pieces_;
};

}  // namespace piper::train
