#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/train/training_settings.h>

namespace piper::train {

TEST_CASE("what a run changes of its training is a line each") {
  RunRequest request;
  request.num_steps = 20;
  request.strategy.sequence = 16;
  request.strategy.global_batch_sequences = 8;
  request.options.learning_rate = {
      .peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  const Json saved = training_settings(request);
  CHECK(changed_settings(saved, training_settings(request), 10).empty());
  CHECK(changed_settings(parse_json(saved.dump(), "m"), saved, 10).empty());
  request.num_steps = 40;
  request.strategy.global_batch_sequences = 16;
  request.strategy.capacity.factor = 1.5;
  request.options.learning_rate.peak = 2e-3;
  CHECK(changed_settings(saved, training_settings(request), 10) ==
        std::vector<std::string>{
            "changed: --global-batch is 16 from step 11 on, 8 before",
            "changed: --steps is 40 from step 11 on, 20 before",
            "changed: --learning-rate is 0.002 from step 11 on, 0.001 before",
            "changed: --capacity-factor is 1.5 from step 11 on, not set before",
            "changed: --drop is \"probability\" from step 11 on, not set before"});
}

TEST_CASE("every setting that decides how a run trains is seen") {
  using Change = void (*)(RunRequest&);
  const Json saved = training_settings(RunRequest());
  for (const Change change : {
           +[](RunRequest& r) { r.strategy.sequence = 77; },
           +[](RunRequest& r) { r.strategy.global_batch_sequences = 77; },
           +[](RunRequest& r) { r.strategy.precision = strategy::Precision::kFp64; },
           +[](RunRequest& r) { r.strategy.expert_compression = 4; },
           +[](RunRequest& r) { r.num_steps = 77; },
           +[](RunRequest& r) { r.options.learning_rate.peak = 0.77; },
           +[](RunRequest& r) { r.options.learning_rate.minimum = 0.77; },
           +[](RunRequest& r) { r.options.learning_rate.warmup_steps = 77; },
           +[](RunRequest& r) { r.options.adamw.weight_decay = 0.77; },
           +[](RunRequest& r) { r.options.clip_norm = 0.77; },
           +[](RunRequest& r) { r.options.bias_update = 0.77; },
       }) {
    RunRequest request;
    change(request);
    CHECK(changed_settings(saved, training_settings(request), 1).size() == 1);
  }
}

}  // namespace piper::train
