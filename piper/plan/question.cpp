#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/estimator.h>
#include <piper/plan/question.h>
#include <piper/plan/shapes.h>
#include <piper/plan/threads.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr int64_t kGpuTokens = int64_t{1} << 22;
constexpr int64_t kGpuSequence = 4096, kCpuSequence = 256;
constexpr int64_t kMostUnasked = 1024;  // devices
constexpr int64_t kSequencesPerDevice = 4, kLeastCpuSequences = 16;

class Settling {
 public:
  Settling(const Question& question, const cost::TrainerProfile& trainer,
           std::vector<Default>& defaults)
      : q_(question), trainer_(trainer), defaults_(defaults) {
    defaults_.clear();
  }

  Request resolve_defaults() {
    Request r{
        .model = &q_.model,
        .cluster = &q_.cluster,
        .trainer = &trainer_,
        .fixed = q_.fixed,
        .memory_limit_bytes = (1 - q_.memory_margin) * static_cast<double>(q_.cluster.memory_bytes),
        .num_kept = q_.num_kept,
        .num_threads = q_.num_threads > 0 ? q_.num_threads : num_usable_cores()};
    r.num_devices = devices();
    if (r.has_exact_costs()) r.fixed.runnable = true;
    r.sequence = settled("sequence", q_.sequence, default_sequence(),
                         is_gpu() ? "the smaller of 4096 and the model's positions"
                                  : "the smaller of 256 and the model's positions");
    r.global_batch_sequences = batch(r.num_devices, r.sequence);
    r.precision = precision();
    check(r);
    set_load(r);
    return r;
  }

 private:
  void set_load(Request& r) {
    if (q_.model.num_moe_layers() == 0) return;
    cost::LoadSamples load;
    if (q_.load) {
      load = *q_.load;
    } else {
      load.load = cost::parse_load(cost::kDefaultLoad);
      defaults_.push_back({"load", cost::kDefaultLoad,
                           "routers of trained models are about as uneven; --load balanced for "
                           "runs that force balance"});
    }
    if (load.load.kind == cost::LoadKind::kUniform) return;
    std::vector<int64_t> eps = expert_degrees(q_.model);
    std::erase_if(eps, [&](int64_t ep) { return ep > r.num_devices; });
    r.imbalance_by_ep = cost::expected_imbalances(load.load, q_.model, eps);
    r.load = std::move(load);
  }

  bool is_gpu() const { return q_.cluster.kind == "gpu"; }

  int64_t settled(const char* what, int64_t given, int64_t fallback, const std::string& why) {
    if (given != 0) return given;
    defaults_.push_back({what, std::to_string(fallback), why});
    return fallback;
  }

  int64_t devices() {
    const FixedAxes& f = q_.fixed;
    const bool both = f.pp.value_or(0) > 0 && f.dp.value_or(0) > 0;
    if (!both) {
      const int64_t all = q_.cluster.num_devices();
      if (q_.num_devices == 0 && all > kMostUnasked)
        throw InvalidInput(fmt::format(
            "--devices is missing: {} has {}, and more than {} are not taken unasked; allowed: 1 "
            "to {}",
            q_.cluster.name, all, kMostUnasked, all));
      return settled("devices", q_.num_devices, all, "all of the cluster");
    }
    const int64_t others =
        std::max<int64_t>(f.tp.value_or(1), 1) * std::max<int64_t>(f.cp.value_or(1), 1);
    return settled("devices", q_.num_devices, *f.pp * *f.dp * others,
                   others > 1 ? "--tp x --cp x --pp x --dp" : "--pp x --dp");
  }

  int64_t default_sequence() const {
    const int64_t most = is_gpu() ? kGpuSequence : kCpuSequence;
    return q_.model.max_positions > 0 ? std::min(most, q_.model.max_positions) : most;
  }

  int64_t batch(int64_t devices, int64_t sequence) {
    const FixedAxes& f = q_.fixed;
    if (f.dp.value_or(0) > 0 && f.micro_batch_sequences.value_or(0) > 0 &&
        f.num_micro_batches.value_or(0) > 0)
      return settled("global_batch", q_.global_batch_sequences,
                     *f.dp * *f.micro_batch_sequences * *f.num_micro_batches,
                     "dp x micro-batch x count");
    const int64_t of_devices = kSequencesPerDevice * devices;
    const int64_t at_least = is_gpu() ? kGpuTokens / sequence : kLeastCpuSequences;
    const int64_t batch = (std::max(of_devices, at_least) + devices - 1) / devices * devices;
    const char* why = of_devices >= at_least ? "4 sequences a device"
                      : is_gpu()             ? "about 4 M tokens"
                                             : "at least 16 sequences";
    return settled("global_batch", q_.global_batch_sequences, batch,
                   fmt::format("{}; a larger batch raises the MFU", why));
  }

  bool has(strategy::Precision precision) const {
    return q_.cluster.compute.contains(strategy::name(precision));
  }

  strategy::Precision precision() {
    using enum strategy::Precision;
    if (q_.precision) return *q_.precision;
    strategy::Precision found = kFp32;
    if (is_gpu() && has(kBf16))
      found = kBf16;
    else if (!has(kFp32))  // profiled in one other precision alone: planned for in that
      found = has(kBf16) ? kBf16 : has(kFp64) ? kFp64 : kFp32;
    defaults_.push_back({"precision", strategy::name(found),
                         found == kBf16 ? "the usual on this device"
                         : is_gpu()     ? "the cluster has no figures for bf16"
                                        : "what is trained on a CPU"});
    return found;
  }

  // What no strategy that is searched could have.
  std::string refusal_of_capacity(const Request& r) const {
    if (!r.fixed.capacity.is_limited()) return {};
    if (q_.model.num_moe_layers() == 0)
      return fmt::format("--capacity-factor: {} is dense (no experts); leave it out",
                         q_.model.name);
    if (!r.fixed.capacity.pads) return {};
    if (trainer_.deduplicates_rows)
      return fmt::format(
          "--pad-to-capacity: trainer {} sends a row for several experts of a node once, where "
          "there "
          "is no room for rows of padding; leave it out, or take another --trainer",
          trainer_.name);
    strategy::Strategy s;
    s.capacity = r.fixed.capacity;
    s.mesh.ep = s.mesh.dp = 2;  // else nothing is exchanged
    s.mesh.cp = r.fixed.cp.value_or(1);
    s.sequence_parallel = r.fixed.sequence_parallel.value_or(false);
    s.mesh.tp = r.fixed.tp.value_or(s.sequence_parallel ? 2 : 1);
    s.moe_schedule = r.fixed.moe_schedule.value_or(strategy::MoeSchedule::kPlain);
    s.all_to_all = r.fixed.exchange.algorithm.value_or(strategy::AllToAll::kFlat);
    std::string refusal = strategy::refusal_of_padding(s);
    if (refusal.empty()) refusal = strategy::refusal_of_padding(s.capacity, q_.model);
    return refusal.empty() ? refusal : "--pad-to-capacity is given " + refusal;
  }

  void check(const Request& r) const {
    std::vector<std::string> problems;
    if (r.num_devices > q_.cluster.num_devices())
      problems.push_back(fmt::format("--devices is {}; allowed: 1 to {}, all that cluster {} has",
                                     r.num_devices, q_.cluster.num_devices(), q_.cluster.name));
    if (q_.model.learned_positions > 0 && r.sequence > q_.model.learned_positions)
      problems.push_back(fmt::format("--sequence is {}; allowed: at most the {} positions of {}",
                                     r.sequence, q_.model.learned_positions, q_.model.name));
    if (!is_gpu() && !r.has_exact_costs())
      problems.push_back(fmt::format(
          "--trainer is {}: cluster {} is priced as this Piper runs it, which trains on "
          "its CPUs; allowed there: piper",
          trainer_.name, q_.cluster.name));
    if (const std::string refusal = refusal_of_capacity(r); !refusal.empty())
      problems.push_back(refusal);
    const bool asks_for_schedule = r.fixed.moe_schedule.value_or(strategy::MoeSchedule::kPlain) !=
                                       strategy::MoeSchedule::kPlain ||
                                   r.fixed.moe_chunks.value_or(1) > 1;
    if (asks_for_schedule && !r.schedules_mixtures())
      problems.push_back(fmt::format(
          "--moe-schedule and --moe-chunks: trainer {} runs mixture layers in one piece; allowed "
          "with it: plain; others with --trainer piper",
          trainer_.name));
    if (r.fixed.expert_compression > 1 && !r.schedules_mixtures())
      problems.push_back(fmt::format(
          "--expert-compression is {}: trainer {} sends experts' weights whole; allowed "
          "with it: 1; others with --trainer piper",
          r.fixed.expert_compression, trainer_.name));
    if (r.fixed.context_exchange == strategy::ContextExchange::kGather && !r.has_exact_costs())
      problems.push_back(
          fmt::format("--context-exchange is gather: it has a price on machines that piper profile "
                      "has measured; by the profile of trainer {} allowed: ring",
                      trainer_.name));
    if (r.fixed.reduction_start.value_or(strategy::ReductionStart::kReady) !=
            strategy::ReductionStart::kReady &&
        !r.has_exact_costs())
      problems.push_back(fmt::format(
          "--reduction-start is {}: it has a price on machines that piper profile has measured; by "
          "the profile of trainer {} allowed: ready",
          strategy::name(*r.fixed.reduction_start), trainer_.name));
    if (r.fixed.runnable && !strategy::runs(r.precision))
      problems.push_back(
          fmt::format("--precision is {}: this Piper trains in fp32, bf16 and fp64{}",
                      strategy::name(r.precision),
                      r.has_exact_costs() ? "" : "; leave out --runnable or take one of these"));
    if (!problems.empty()) throw InvalidInput(problems);
  }

  const Question& q_;
  const cost::TrainerProfile& trainer_;
  std::vector<Default>& defaults_;
};

}  // namespace

Request resolve_defaults(const Question& question, const cost::TrainerProfile& trainer,
                         std::vector<Default>& defaults) {
  return Settling(question, trainer, defaults).resolve_defaults();
}

}  // namespace piper::plan
