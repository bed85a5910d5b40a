#include <fmt/format.h>
#include <piper/balance/copies.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/checkpoint/model_fingerprint.h>
#include <piper/train/rebalancer.h>
#include <piper/train/starting_point.h>
#include <piper/train/training_settings.h>

#include <utility>

namespace piper::train {
namespace {

// The same model with another number of trained modules: how many, when the fingerprint is that
// one's.
std::optional<int64_t> other_mtp_depth(const model::Model& model, const std::string& fingerprint) {
  model::Model alone = model;
  alone.layers.resize(static_cast<size_t>(model.num_layers()));
  alone.mtp_depth = 0;
  for (int64_t depth = 0; depth <= model::kMaxMtpDepth; ++depth)
    if (checkpoint::has_fingerprint(model::with_mtp(alone, depth), fingerprint)) return depth;
  return std::nullopt;
}

}  // namespace

void StartingPoint::resume_from(checkpoint::FoundCheckpoint found) {
  checkpoint::CheckpointIdentity run = run_.identity();
  const std::string& fingerprint = found.manifest.identity.fingerprint;
  if (checkpoint::has_fingerprint(run_.request.model, fingerprint))
    run.fingerprint = fingerprint;  // as this version writes it, or an earlier one did
  else if (const auto depth = other_mtp_depth(run_.request.model, fingerprint))
    throw InvalidInput(
        fmt::format("{}: was trained with --mtp-depth {}, this run has {}; allowed: the same",
                    found.path.string(), *depth, run_.request.model.mtp_depth));
  if (const auto problems = checkpoint::differences(found.manifest, run, found.path);
      !problems.empty())
    throw InvalidInput(problems);
  const std::string open =
      checkpoint::left_open(run_.request.model, fingerprint, found.path.string());
  const checkpoint::TrainState state = found.manifest.state;
  if (!run_.request.corpus.has_fingerprint(state.text_fingerprint))
    throw InvalidInput(fmt::format("{}: was trained on another text than {}", found.path.string(),
                                   run_.request.corpus.source()));
  const int64_t step_tokens =
      run_.request.strategy.global_batch_sequences * run_.request.strategy.sequence;
  if (run_.request.corpus.is_indexed() && state.target_tokens != state.step * step_tokens)
    throw InvalidInput(fmt::format(
        "{}: has read {} tokens in {} steps; allowed: the same global batch and sequence, or its "
        "position in {} is lost",
        found.path.string(), state.target_tokens, state.step, run_.request.corpus.source()));
  first_step_ = state.step + 1;
  state_ = state;
  shared_.options.seed = state.seed;
  run_.say(fmt::format("resuming after step {} from {}", state.step, found.path.string()));
  if (!open.empty()) run_.say(open);
  if (const std::string change = checkpoint::resharding(found.manifest.identity, run);
      !change.empty())
    run_.say(change);
  if (state.step > run_.last_step())
    throw InvalidInput(fmt::format(
        "the run is to end after step {} (--steps, --stop-after), and the checkpoint has {} steps "
        "already; allowed: as many or more",
        run_.last_step(), state.step));
  resumed_.emplace(std::move(found));
  say_changes();
  resumed_->require_exactly(run_.request.model);
  place_as_saved();
}

void StartingPoint::say_changes() const {
  const int64_t step = state_.step;
  if (run_.request.options.seed != state_.seed)
    run_.say(fmt::format("not changed: the seed stays {}, as the run began; --seed is {}",
                         state_.seed, run_.request.options.seed));
  if (const Json* before = saved(kTrainingSettings); before == nullptr)
    run_.say(
        fmt::format("{} was saved by an earlier Piper, which did not note batch, sequence, "
                    "rates and schedule: what this run changes of them is not known",
                    resumed_->checkpoint().path.string()));
  else
    for (const std::string& line : changed_settings(*before, training_settings(run_.request), step))
      run_.say(line);
  if (step == run_.last_step())
    run_.say(fmt::format("nothing is left to train: step {} is the last", step));
}

void StartingPoint::read_weights() {
  weights_.emplace(run_.request.initial_weights);
  checkpoint::check_weights(*weights_, run_.request.model);
}

const Json* StartingPoint::saved(const char* key) const {
  if (!resumed_) return nullptr;
  const Json& extra = resumed_->checkpoint().manifest.state.extra;
  const auto found = extra.find(key);
  return found == extra.end() ? nullptr : &*found;
}

std::string StartingPoint::source() const {
  return (resumed_->checkpoint().path / "manifest.json").string();
}

// The placements of the checkpoint, where they suit; the tensors are found by their names anyway.
void StartingPoint::place_as_saved() {
  shared_.placements.clear();
  const Json* placed = saved(kExpertPlacement);
  if (placed == nullptr) return;
  balance::Placements placements =
      balance::placements_from_json(*placed, num_experts_by_layer(run_.request.model), source());
  for (auto& [layer, placement] : placements) {
    if (placement.num_ranks() != run_.request.strategy.mesh.ep) {
      run_.say(
          fmt::format("experts were placed on {} ranks of an expert group, {} now: they begin in "
                      "the order of their numbers",
                      placement.num_ranks(), run_.request.strategy.mesh.ep));
      return;
    }
    if (suits(placement, run_.request.strategy)) continue;
    if (!placement.homes().has_homes_first())
      throw InvalidInput(fmt::format(
          "{}: layer {} is placed as {}; allowed: the homes of experts equally many on a rank",
          source(), layer, balance::to_text(placement)));
    // More or fewer copies than before: which ones, a decision says when loads have been seen.
    const balance::Loads none(static_cast<size_t>(placement.num_experts()));
    placement = balance::share_hot(placement.homes(), none,
                                   run_.request.strategy.redundant_experts / placement.num_ranks());
  }
  shared_.placements = std::move(placements);
}

void StartingPoint::load(RankTrainer& trainer, const std::string& who) const {
  if (resumed_) {
    resumed_->read(checkpoint::state_tensors(trainer.stage(), trainer.optimizer()), who);
  } else if (weights_) {
    checkpoint::load_weights(*weights_, trainer.stage().named_pieces(),
                             run_.request.model.tied_embeddings);
    trainer.keep_weights();
    trainer.optimizer().take_parameters();
  }
  trainer.keep_weights();
}

}  // namespace piper::train
