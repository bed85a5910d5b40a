// Checkpoints, and whether what would be saved is still sound.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cost/shard.h>
#include <piper/model/count.h>
#include <piper/strategy/mesh.h>
#include <piper/train/available_memory.h>
#include <piper/train/checkpoint_state.h>
#include <piper/train/replicas.h>
#include <piper/train/run_parts.h>
#include <piper/train/together.h>

#include <algorithm>

namespace piper::train::parts {

TrainState Run::state_after(int64_t number) const {
  const int64_t before = resumed_ ? resumed_->checkpoint().manifest.state.target_tokens : 0;
  TrainState state;
  state.step = number;
  state.seed = shared_.options.seed;
  state.target_tokens = before + (number - first_step_ + 1) *
                                     request_.strategy.global_batch_sequences *
                                     request_.strategy.sequence;
  state.skipped_steps = skipped_;
  state.text_fingerprint = request_.corpus.fingerprint();
  return state;
}

// At most: replicas write nothing twice.
int64_t Run::bytes_saved_here() const {
  int64_t parameters = 0;
  const strategy::Strategy& s = request_.strategy;
  for (const Rank rank : world_.local_ranks())
    parameters += cost::shard_of(request_.model, s, strategy::coordinates(s.mesh, rank).pp).total();
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
  WriterOptions options{.folder = request_.folder / "checkpoints",
                        .keep = request_.keep_checkpoints,
                        .copies = request_.async_save && fits,
                        .disk = request_.disk,
                        .process = world_.process(),
                        .num_processes = world_.num_processes(),
                        .num_local_ranks = std::ssize(world_.local_ranks()),
                        .token = is_alone() ? std::string() : token_,
                        .timeout_seconds = request_.options.timeout_seconds};
  options.others_failed = [this, failed_at = -1.0]() mutable {
    if (failed_at < 0 && world_.failed_rank().valid()) failed_at = runtime::now_seconds();
    return failed_at >= 0 && runtime::now_seconds() > failed_at + kPartingSeconds;
  };
  writer_.emplace(std::move(options), identity());
}

// Before a save, so that what drifted apart is never saved.
void Run::check_replicas(RankTrainer& trainer, comm::Transport& transport, int64_t number) {
  if (request_.strategy.mesh.dp == 1) return;
  const std::vector<std::string> all =
      gather(transport, kReplicaKeys + 2 * static_cast<uint64_t>(number),
             replica_hashes(trainer.stage().parameters()), request_.options.timeout_seconds);
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

// Behind the barrier every rank hands in, or none does.
void Run::save(RankTrainer& trainer, comm::Transport& transport, int64_t number) {
  const Rank rank = trainer.rank();
  if (rank == world_.local_ranks().front() && !writer_) open_writer();
  barrier(transport, kBarrierKeys + static_cast<uint64_t>(number),
          request_.options.timeout_seconds);
  writer_->hand_in(
      rank, rank == Rank(0) ? state_after(number) : TrainState{.step = number},
      written_tensors(trainer.stage(), trainer.optimizer(), request_.strategy.mesh, rank));
}

void Run::say_saves() {
  if (!writer_) return;
  for (const SaveReport& report : writer_->take_reports())
    say(fmt::format("saved step {}: {} in {}, training was kept waiting for {}", report.step,
                    format_bytes(static_cast<double>(report.bytes)),
                    format_seconds(report.written_seconds), format_seconds(report.waited_seconds)));
}

}  // namespace piper::train::parts
