#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/weight_folder.h>
#include <piper/cost/estimator.h>
#include <piper/cost/expert_price.h>
#include <piper/cost/segment_time.h>
#include <piper/files/sha256.h>
#include <piper/strategy/runnable.h>
#include <piper/train/available_memory.h>
#include <piper/train/memory_check.h>
#include <piper/train/process_agreement.h>
#include <piper/train/rebalancer.h>
#include <piper/train/run_check.h>

namespace piper::train {
namespace {

void check_replanning(const RunContext& run, std::vector<std::string>& problems) {
  const std::string missing = cost::unpriced(run.request.cluster, run.request.strategy.precision);
  if (!missing.empty())
    problems.push_back("--replan has nothing to compare with (" + missing + "); allowed here: off");
  else if (!cost::has_exact_costs(run.request.cluster, cost::load_trainer("piper")))
    problems.push_back(fmt::format(
        "--replan compares by this Piper's own costs, which are known of a machine that `piper "
        "profile` measured, and {} is described; allowed here: off",
        run.request.cluster.name));
}

}  // namespace

void check_request(const RunContext& run) {
  const strategy::Strategy& s = run.request.strategy;
  std::vector<std::string> problems = strategy::untrainable(run.request.model, s);
  if (!run.request.corpus.is_indexed() && run.request.model.vocabulary < 256)
    problems.push_back(fmt::format("vocabulary of {} is {}; byte text needs at least 256",
                                   run.request.model.name, run.request.model.vocabulary));
  for (std::string& problem : train::problems(run.request.rebalance, s,
                                              cost::expert_bytes(run.request.model, s.precision)))
    problems.push_back(std::move(problem));
  if (run.request.replan.is_on()) check_replanning(run, problems);
  if (!problems.empty()) throw InvalidInput(problems);
  require_memory_of(run.request.model, run.request.strategy, run.world.local_ranks(),
                    run.request.devices);
  // On the CPU tensors are in the same memory, which is known to hold them.
  const std::filesystem::path& folder = run.request.host_folder;
  const auto beside_tensors = [&] {
    return needed_memory(run.request.model, s, run.world.local_ranks()).total();
  };
  require_host_memory(run.request.model, s, run.world.local_ranks(), folder,
                      !folder.empty() ? run.request.disk.free_bytes(folder)
                                      : available_memory_bytes() -
                                            (run.request.devices.is_cpu() ? beside_tensors() : 0));
  data::check_window(run.request.corpus, s.sequence);
  if (run.request.validate_every > 0) data::check_window(run.request.validation, s.sequence);
}

void require_same_inputs(comm::World& world, const ProcessInputs& inputs) {
  if (world.num_processes() == 1) return;
  require_agreement(world, "model", checkpoint::model_fingerprint(inputs.model));
  require_agreement(world, "strategy", strategy::to_json(inputs.strategy).dump());
  const auto text = [](const data::Corpus& corpus) {
    return corpus.size() == 0 ? std::string("no tokens")
                              : fmt::format("{} tokens, {}", corpus.size(), corpus.fingerprint());
  };
  require_agreement(world, "text", [&] { return text(inputs.corpus); });
  if (inputs.validation != nullptr)
    require_agreement(world, "text of the validation", [&] { return text(*inputs.validation); });
  require_agreement(world, "folder of weights", [&] {
    return inputs.weights.empty() ? std::string("none")
                                  : checkpoint::WeightFolder(inputs.weights).fingerprint();
  });
}

void require_same_request(const RunContext& run) {
  if (run.is_alone()) return;
  const strategy::Strategy& s = run.request.strategy;
  if (run.world.size() != s.mesh.world())
    throw InvalidInput(fmt::format("the launcher started {} ranks and the strategy is for {} ({})",
                                   run.world.size(), s.mesh.world(), checkpoint::describe(s.mesh)));
  const TrainOptions& o = run.request.options;
  require_same_inputs(run.world, {.model = run.request.model,
                                  .strategy = s,
                                  .corpus = run.request.corpus,
                                  .validation = &run.request.validation,
                                  .weights = run.request.initial_weights});
  require_agreement(run.world, "config", files::sha256_hex(run.request.config.dump()));
  require_agreement(
      run.world, "set of flags",
      fmt::format(
          "--steps {} --stop-after {} --seed {} --learning-rate {} {} {} {} --weight-decay {} "
          "--clip-norm {} --bias-update {} --z-loss {} --mtp-weight {} --checkpoint-every {} "
          "--check-replicas-every {} --validate-every {} "
          "--validation-windows {} --rebalance {} --rebalance-every {} --rebalance-budget {} "
          "--expert-placement {} --replan {} --replan-bound {} resume {} weights {} export {} "
          "--speed-check {}",
          run.request.num_steps, run.request.stop_after, o.seed, o.learning_rate.peak,
          o.learning_rate.minimum, o.learning_rate.warmup_steps, o.learning_rate.total_steps,
          o.adamw.weight_decay, o.clip_norm, o.bias_update, run.request.model.router_z_coefficient,
          o.mtp_weight, run.request.checkpoint_every, run.request.check_replicas_every,
          run.request.validate_every, run.request.validation_windows,
          balance::to_text(run.request.rebalance), run.request.rebalance.every,
          run.request.rebalance.budget_bytes, balance::to_json(run.request.placements).dump(),
          traits(run.request.replan.kind).name, run.request.replan.bound, run.request.resume,
          run.request.initial_weights.string(), run.request.export_weights,
          run.request.speed_check));
}

}  // namespace piper::train
