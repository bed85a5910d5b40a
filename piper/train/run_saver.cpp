#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/checkpoint/tensor_check.h>
#include <piper/cost/rank_parameters.h>
#include <piper/executor/clock.h>
#include <piper/model/count.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/state_bytes.h>
#include <piper/train/available_memory.h>
#include <piper/train/process_agreement.h>
#include <piper/train/replicas.h>
#include <piper/train/run_saver.h>

#include <algorithm>

namespace piper::train {
namespace {

// How long a save goes on waiting for the shards of processes once the run has failed.
constexpr double kPartingSeconds = 1;

}  // namespace

void check_replicas(const RunContext& run, RankTrainer& trainer, comm::Transport& transport,
                    int64_t number) {
  if (run.request.strategy.mesh.ranks_per_stage() == 1) return;
  const std::vector<std::string> all =
      gather(transport, kReplicaKeys + 2 * static_cast<uint64_t>(number),
             replica_hashes(trainer.stage().parameters(), trainer.optimizer()),
             run.request.options.timeout_seconds);
  if (trainer.rank() != Rank(0)) return;
  const std::vector<std::string> drifted = drifted_replicas(run.request.strategy.mesh, all);
  if (drifted.empty()) return;
  const std::string what = fmt::format(
      "replicas drifted apart by step {}: {}; nothing of it was saved or exported, go on from an "
      "earlier checkpoint with --resume, on other hardware if it happens again",
      number, fmt::join(drifted, "; "));
  transport.fail(what, comm::Fault::kRun);
  throw CommError(what);
}

bool agree_finite(const RunContext& run, const std::vector<nn::NamedTensor>& tensors,
                  comm::Transport& transport, const FiniteKeys& keys, const std::string& refused,
                  const std::string& advice) {
  const double timeout = run.request.options.timeout_seconds;
  const std::string mine = checkpoint::first_not_finite(tensors);
  const std::vector<int64_t> bad =
      all_gather_number(transport, keys.agree, mine.empty() ? 0 : 1, timeout);
  if (std::ranges::count(bad, 1) == 0) return true;
  const std::vector<std::string> names = gather(transport, keys.gather, mine, timeout);
  if (transport.rank() != Rank(0)) return false;
  const auto first = static_cast<size_t>(std::ranges::find(bad, 1) - bad.begin());
  const std::string what = fmt::format(
      "{}, and the run ends: rank {}'s {} holds infinities or NaN (so do {} other ranks)", refused,
      first, names[first], std::ranges::count(bad, 1) - 1);
  transport.fail(what, comm::Fault::kInput);
  throw InvalidInput(what + "; " + advice);
}

// At most: replicas write nothing twice.
int64_t RunSaver::bytes_saved_here() const {
  int64_t parameters = 0;
  const strategy::Strategy& s = run_.request.strategy;
  for (const Rank rank : run_.world.local_ranks())
    parameters +=
        cost::rank_parameters(run_.request.model, s, strategy::RankLayout(s).stage(rank)).total();
  const model::Parameters all = model::count_parameters(run_.request.model);
  const bool has_modules = run_.request.model.mtp_depth > 0;
  parameters = std::min(parameters, all.total() + (has_modules ? all.next_token_layers : 0));
  const strategy::StateBytes of_parameter = strategy::state_bytes(s.precision);
  return parameters * (of_parameter.weight + of_parameter.optimizer);
}

// Training goes on during a save only if a copy of this process's state fits into memory.
void RunSaver::open_writer() {
  const int64_t bytes = bytes_saved_here();
  const int64_t available = available_memory_bytes();
  const bool fits = bytes + bytes / 4 < available;
  if (run_.request.async_save && !fits)
    run_.say(fmt::format(
        "training waits for each save: to go on meanwhile needs {} more memory, {} is "
        "available",
        format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(available))));
  checkpoint::WriterOptions options{.folder = run_.request.folder / "checkpoints",
                                    .keep = run_.request.keep_checkpoints,
                                    .copies = run_.request.async_save && fits,
                                    .disk = run_.request.disk,
                                    .process = run_.world.process(),
                                    .num_processes = run_.world.num_processes(),
                                    .num_local_ranks = std::ssize(run_.world.local_ranks()),
                                    .token = run_.is_alone() ? std::string() : token_,
                                    .timeout_seconds = run_.request.options.timeout_seconds,
                                    .before_commit = sync_records_};
  options.others_failed = [this, failed_at = -1.0]() mutable {
    if (failed_at < 0 && run_.world.failed_rank().valid()) failed_at = executor::now_seconds();
    return failed_at >= 0 && executor::now_seconds() > failed_at + kPartingSeconds;
  };
  writer_.emplace(std::move(options), run_.identity());
}

void RunSaver::save(RankTrainer& trainer, comm::Transport& transport, int64_t number,
                    const std::function<checkpoint::TrainState()>& state) {
  const Rank rank = trainer.rank();
  if (rank == run_.world.local_ranks().front() && !writer_) open_writer();
  const std::vector<nn::NamedTensor> tensors = checkpoint::written_tensors(
      trainer.stage(), trainer.optimizer(), run_.request.strategy.mesh, rank);
  // What is not finite never heals (a NaN moment stays one), so there is nothing to wait for.
  // Behind this meeting point every rank hands in, or none does.
  const auto step = static_cast<uint64_t>(number);
  if (!agree_finite(run_, tensors, transport, {kBarrierKeys + step, kFiniteKeys + 2 * step},
                    fmt::format("step {} is not saved", number),
                    "earlier checkpoints are untouched: --resume with a lower --learning-rate"))
    return;
  writer_->hand_in(rank, rank == Rank(0) ? state() : checkpoint::TrainState{.step = number},
                   tensors);
}

void RunSaver::check() {
  if (writer_) writer_->check();
}

void RunSaver::finish() {
  if (writer_) writer_->finish();
}

void RunSaver::say_saves() {
  if (!writer_) return;
  for (const checkpoint::SaveReport& report : writer_->take_reports()) {
    run_.say(fmt::format("saved step {}: {} in {}, training was kept waiting for {}{}", report.step,
                         format_bytes(static_cast<double>(report.bytes)),
                         format_seconds(report.written_seconds),
                         format_seconds(report.waited_seconds),
                         report.verified_bytes == 0
                             ? ""
                             : fmt::format("; {} of those kept read back in {}",
                                           format_bytes(static_cast<double>(report.verified_bytes)),
                                           format_seconds(report.verified_seconds))));
    for (const std::string& note : report.notes) run_.say(note);
  }
}

}  // namespace piper::train
