#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/train/training_settings.h>

#include <utility>

namespace piper::train {

Json training_settings(const RunRequest& request) {
  const strategy::Strategy& s = request.strategy;
  const TrainOptions& o = request.options;
  Json settings = {{"sequence", s.sequence},
                   {"global-batch", s.global_batch_sequences},
                   {"precision", strategy::name(s.precision)},
                   {"steps", request.num_steps},
                   {"learning-rate", o.learning_rate.peak},
                   {"minimum-learning-rate", o.learning_rate.minimum},
                   {"warmup-steps", o.learning_rate.warmup_steps},
                   {"weight-decay", o.adamw.weight_decay},
                   {"clip-norm", o.clip_norm},
                   {"bias-update", o.bias_update}};
  if (request.model.mtp_depth > 0) settings["mtp-weight"] = o.mtp_weight;
  // What drops or rounds is part of what is learnt.
  const Json plan = strategy::to_json(s);
  for (const auto& [flag, key] :
       {std::pair("capacity-factor", "capacity_factor"), std::pair("drop", "drop"),
        std::pair("expert-compression", "expert_compression")})
    if (const auto found = plan.find(key); found != plan.end()) settings[flag] = *found;
  return settings;
}

std::vector<std::string> changed_settings(const Json& saved, const Json& now, int64_t step) {
  std::vector<std::string> lines;
  const auto value = [](const Json& of, const std::string& key) {
    const auto found = of.find(key);
    return found == of.end() ? std::string("not set") : found->dump();
  };
  Json all = now;
  if (saved.is_object()) all.update(saved);
  for (const auto& [key, unused] : all.items())
    if (value(saved, key) != value(now, key))
      lines.push_back(fmt::format("changed: --{} is {} from step {} on, {} before", key,
                                  value(now, key), step + 1, value(saved, key)));
  return lines;
}

}  // namespace piper::train
