// Loss of a model on a corpus, on one rank: non-overlapping windows, targets shifted by one, the
// tail dropped.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/stage.h>
#include <piper/train/corpus.h>

#include <cstdint>
#include <functional>

namespace piper::train {

struct Evaluation {
  double loss = 0;     // nats a target token
  int64_t tokens = 0;  // target tokens
};

// On the first `max_windows` windows (0 = all). `stage` holds the whole model. `progress` gets
// windows done and in all; may be empty.
Evaluation evaluate(nn::Stage& stage, const model::Model& model, const Corpus& corpus,
                    int64_t sequence, int64_t max_windows = 0,
                    const std::function<void(int64_t, int64_t)>& progress = {});

// One forward over the whole model without communication: tokens [B, S] to x [T, D] before the
// head.
at::Tensor forward_all(nn::Stage& stage, const model::Model& model, const at::Tensor& tokens_BS);

// A strategy of one rank, for a stage that holds everything.
strategy::Strategy one_rank(const model::Model& model, int64_t sequence, int64_t sequences,
                            strategy::Precision precision);

}  // namespace piper::train
