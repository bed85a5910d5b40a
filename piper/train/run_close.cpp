// What is gathered once the last step is done: the report of all ranks, the final weights,
// predicted beside measured.
#include <piper/checkpoint/hf_weights.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/cost/expert_rows.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_parts.h>

#include <algorithm>
#include <cstring>

namespace piper::train::parts {

// What other processes' ranks measured of their machines.
void Run::gather_speed(comm::Transport& transport) {
  const Rank rank = transport.rank();
  const std::vector<std::string> parts =
      gather(transport, kGatherKeys + 4, is_first() ? "" : speed_.part_of(rank),
             request_.options.timeout_seconds);
  for (size_t r = 0; r < parts.size(); ++r)
    if (!parts[r].empty()) speed_.add_part(Rank(static_cast<int64_t>(r)), parts[r]);
}

// Process 0 writes the report of all ranks: the median step of each.
void Run::gather_parts(comm::Transport& transport) {
  const Rank rank = transport.rank();
  const double timeout = request_.options.timeout_seconds;
  gather_speed(transport);
  if (rank == Rank(0)) recorder_.set_slowdowns(first_step_, speed_.slowdowns());
  const int64_t step =
      broadcast(transport, kGatherKeys, rank == Rank(0) ? recorder_.median_step() : 0, timeout);
  gather_step(transport, kGatherKeys + 1, step);
}

// Process 0's recorder has of this step what all ranks noted. `key` and `key` + 1 name its
// operations.
void Run::gather_step(comm::Transport& transport, uint64_t key, int64_t step) {
  const Rank rank = transport.rank();
  std::string mine;
  if (!is_first()) {
    mine.assign(reinterpret_cast<const char*>(&start_seconds_[rank.index()]), sizeof(double));
    mine += recorder_.part_of(rank, step);
  }
  const std::vector<std::string> parts =
      gather(transport, key, mine, request_.options.timeout_seconds);
  const int64_t ranks_per_process = world_.size() / world_.num_processes();
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].empty()) continue;
    double start = 0;
    std::memcpy(&start, parts[r].data(), sizeof(start));
    // Hosts have clocks of their own; all ranks left the first barrier at about the same time.
    const bool same_clock = hosts_[r / static_cast<size_t>(ranks_per_process)] == hosts_.front();
    recorder_.add_part(Rank(static_cast<int64_t>(r)), step, parts[r].substr(sizeof(start)),
                       same_clock ? 0 : start_seconds_[0] - start);
  }
}

// Other processes leave their pieces in files, which process 0 reads.
void Run::export_weights(RankTrainer& trainer, comm::Transport& transport) {
  const fs::path pieces = request_.folder / ("weights.tmp-" + token_);
  std::vector<nn::NamedTensor> mine;
  for (const nn::NamedPiece& piece : trainer.stage().named_pieces())
    mine.push_back(nn::in_file({piece.name, piece.value.contiguous().clone(), piece.part}));
  if (!is_first()) {
    fs::create_directories(pieces);
    checkpoint::write_safetensors(pieces / checkpoint::shard_name(trainer.rank().value), mine);
    mine.clear();
  }
  barrier(transport, kGatherKeys + 3, request_.options.timeout_seconds);
  const std::lock_guard lock(mutex_);
  exported_.insert(exported_.end(), mine.begin(), mine.end());
  if (trainer.rank() != Rank(0) || is_alone()) return;
  for (int64_t r = std::ssize(world_.local_ranks()); r < world_.size(); ++r) {
    const checkpoint::SafetensorsFile file(pieces / checkpoint::shard_name(r));
    for (const checkpoint::TensorEntry& entry : file.tensors()) {
      exported_.push_back(
          {entry.name, at::empty(entry.shape, checkpoint::scalar_type(entry.dtype))});
      file.read(entry, exported_.back().value);
    }
  }
  fs::remove_all(pieces);
}

RunResult Run::finish() {
  RunResult result{.stopped = stopped_ && !next_strategy_, .replanned = std::move(replanned_)};
  if (!is_first()) return result;
  result.metrics = metrics_;
  if (is_alone()) recorder_.set_slowdowns(first_step_, speed_.slowdowns());
  result.prediction = std::move(prediction_);
  result.measurement = recorder_.measurement();
  cost::ExpertLoad load =
      cost::load_of(request_.model, request_.strategy, recorder_.measured_rows());
  recorder_.measured_routing(load);
  if (result.prediction)
    result.prediction_with_load =
        predict(step_, request_.model, request_.strategy, request_.cluster, load,
                recorder_.slowdown_of(recorder_.median_step()));
  result.comparison = compare(step_, request_.model, request_.strategy, request_.cluster,
                              result.prediction_with_load, result.measurement);
  result.traffic = compare_traffic(
      step_, recorder_.median_step(),
      cost::sent_bytes(step_, request_.model, request_.strategy, shared_.topology, load),
      recorder_.measured_traffic());
  carry_over(result);
  if (result.prediction) result.same_order = recorder_.same_order(result.prediction->timeline);
  recorder_.write_files(request_.folder, result);
  if (!exported_.empty())
    checkpoint::export_weights(
        request_.folder / "weights",
        checkpoint::config_with_modules(request_.config, request_.model),
        checkpoint::with_module_tables(nn::put_together(exported_), request_.model));
  return result;
}

// Beside what compare() knows: what the plan said, what an even load would give, and the load there
// was.
void Run::carry_over(RunResult& result) const {
  report::Comparison& comparison = result.comparison;
  if (result.prediction) comparison.balanced_step_seconds = result.prediction->step_seconds;
  if (const std::shared_ptr<const Json>& planned = request_.strategy.predicted)
    if (const auto found = planned->find("step_seconds");
        found != planned->end() && found->is_number())
      comparison.planned_step_seconds = found->get<double>();
  if (!speed_.slowdowns().empty())
    comparison.machine_slowdown = recorder_.slowdown_of(recorder_.median_step());
  for (const StepMetrics& metrics : metrics_)
    if (metrics.step == recorder_.median_step() && metrics.load_imbalance > 0)
      comparison.measured_load_imbalance = metrics.load_imbalance;
}

}  // namespace piper::train::parts
