// Checkpoints, and whether what would be saved is still sound.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/checkpoint/tensor_check.h>
#include <piper/cost/shard.h>
#include <piper/executor/clock.h>
#include <piper/model/count.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/available_memory.h>
#include <piper/train/process_agreement.h>
#include <piper/train/replicas.h>
#include <piper/train/run_parts.h>

#include <algorithm>

namespace piper::train::parts {

checkpoint::TrainState Run::state_after(int64_t number, const balance::Placements& placements,
                                        const Rebalancer& rebalancer) const {
  const int64_t before = resumed_ ? resumed_->checkpoint().manifest.state.target_tokens : 0;
  checkpoint::TrainState state;
  state.step = number;
  state.seed = shared_.options.seed;
  state.target_tokens = before + (number - first_step_ + 1) *
                                     request_.strategy.global_batch_sequences *
                                     request_.strategy.sequence;
  state.skipped_steps = skipped_;
  state.skipped_in_a_row = skipped_in_a_row_;
  state.text_fingerprint = request_.corpus.fingerprint();
  if (const balance::Placements some = displaced(placements); !some.empty())
    state.extra[kExpertPlacement] = balance::to_json(some);
  if (request_.rebalance.is_on()) state.extra[kExpertLoads] = rebalancer.window();
  if (!product_libraries_.empty()) state.extra[kProductLibraries] = product_libraries_;
  if (!grouped_products_.empty()) state.extra[kGroupedProducts] = grouped_products_;
  return state;
}

// At most: replicas write nothing twice.
int64_t Run::bytes_saved_here() const {
  int64_t parameters = 0;
  const strategy::Strategy& s = request_.strategy;
  for (const Rank rank : world_.local_ranks())
    parameters += cost::shard_of(request_.model, s, strategy::RankLayout(s).stage(rank)).total();
  const model::Parameters all = model::count_parameters(request_.model);
  const bool has_modules = request_.model.mtp_depth > 0;
  parameters = std::min(parameters, all.total() + (has_modules ? all.next_token_layers : 0));
  const cost::StateBytes of_parameter = cost::state_bytes(s.precision);
  return parameters * (of_parameter.weight + of_parameter.optimizer);
}

// Of the state that lies in this process a copy is made once.
void Run::open_writer() {
  const int64_t bytes = bytes_saved_here();
  const int64_t available = available_memory_bytes();
  const bool fits = bytes + bytes / 4 < available;
  if (request_.async_save && !fits)
    say(fmt::format(
        "training waits for each save: to go on meanwhile needs {} more memory, {} is "
        "available",
        format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(available))));
  checkpoint::WriterOptions options{.folder = request_.folder / "checkpoints",
                                    .keep = request_.keep_checkpoints,
                                    .copies = request_.async_save && fits,
                                    .disk = request_.disk,
                                    .process = world_.process(),
                                    .num_processes = world_.num_processes(),
                                    .num_local_ranks = std::ssize(world_.local_ranks()),
                                    .token = is_alone() ? std::string() : token_,
                                    .timeout_seconds = request_.options.timeout_seconds,
                                    .before_commit = [this] { sync_records(); }};
  options.others_failed = [this, failed_at = -1.0]() mutable {
    if (failed_at < 0 && world_.failed_rank().valid()) failed_at = executor::now_seconds();
    return failed_at >= 0 && executor::now_seconds() > failed_at + kPartingSeconds;
  };
  writer_.emplace(std::move(options), identity());
}

// Before a save, so that what drifted apart is never saved.
void Run::check_replicas(RankTrainer& trainer, comm::Transport& transport, int64_t number) {
  if (request_.strategy.mesh.ranks_per_stage() == 1) return;
  const std::vector<std::string> all =
      gather(transport, kReplicaKeys + 2 * static_cast<uint64_t>(number),
             replica_hashes(trainer.stage().parameters(), trainer.optimizer()),
             request_.options.timeout_seconds);
  if (trainer.rank() != Rank(0)) return;
  const std::vector<std::string> drifted = drifted_replicas(request_.strategy.mesh, all);
  if (drifted.empty()) return;
  const std::string what = fmt::format(
      "replicas drifted apart by step {}: {}; nothing of it was saved, go on from an "
      "earlier checkpoint with --resume, on other hardware if it happens again",
      number, fmt::join(drifted, "; "));
  transport.fail(what);
  throw CommError(what);
}

// Whether every rank's part of the state is finite. What is not finite never heals (a NaN moment
// stays one), so there is nothing to wait for: rank 0 ends the run, and the others meet its end in
// their next operation. Also the meeting point behind which every rank hands in, or none does.
bool Run::agree_to_save(const std::vector<nn::NamedTensor>& tensors, comm::Transport& transport,
                        int64_t number) {
  const double timeout = request_.options.timeout_seconds;
  const std::string mine = checkpoint::first_not_finite(tensors);
  const std::vector<int64_t> bad = all_gather_number(
      transport, kBarrierKeys + static_cast<uint64_t>(number), mine.empty() ? 0 : 1, timeout);
  if (std::ranges::count(bad, 1) == 0) return true;
  const std::vector<std::string> names =
      gather(transport, kFiniteKeys + 2 * static_cast<uint64_t>(number), mine, timeout);
  if (transport.rank() != Rank(0)) return false;
  const auto first = static_cast<size_t>(std::ranges::find(bad, 1) - bad.begin());
  const std::string what = fmt::format(
      "step {} is not saved, and the run ends: rank {}'s {} holds infinities or NaN (so do {} "
      "other "
      "ranks)",
      number, first, names[first], std::ranges::count(bad, 1) - 1);
  transport.fail(what);
  throw InvalidInput(what +
                     "; earlier checkpoints are untouched: --resume with a lower --learning-rate");
}

// What the user was shown of a step is there when the step can be resumed from.
void Run::sync_records() const {
  metrics_writer_->sync();
  events_->sync();
  files::sync_folder(request_.folder / "tensorboard");
  files::sync_folder(request_.folder);
}

void Run::save(RankTrainer& trainer, const Rebalancer& rebalancer, comm::Transport& transport,
               int64_t number) {
  const Rank rank = trainer.rank();
  if (rank == world_.local_ranks().front() && !writer_) open_writer();
  const std::vector<nn::NamedTensor> tensors = checkpoint::written_tensors(
      trainer.stage(), trainer.optimizer(), request_.strategy.mesh, rank);
  if (!agree_to_save(tensors, transport, number)) return;
  writer_->hand_in(rank,
                   rank == Rank(0) ? state_after(number, trainer.placements(), rebalancer)
                                   : checkpoint::TrainState{.step = number},
                   tensors);
}

void Run::say_saves() {
  if (!writer_) return;
  for (const checkpoint::SaveReport& report : writer_->take_reports()) {
    say(fmt::format("saved step {}: {} in {}, training was kept waiting for {}{}", report.step,
                    format_bytes(static_cast<double>(report.bytes)),
                    format_seconds(report.written_seconds), format_seconds(report.waited_seconds),
                    report.verified_bytes == 0
                        ? ""
                        : fmt::format("; {} of those kept read back in {}",
                                      format_bytes(static_cast<double>(report.verified_bytes)),
                                      format_seconds(report.verified_seconds))));
    for (const std::string& note : report.notes) say(note);
  }
}

}  // namespace piper::train::parts
