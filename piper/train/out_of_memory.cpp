#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/cost/executor_estimator.h>
#include <piper/report/table.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>
#include <piper/train/available_memory.h>
#include <piper/train/out_of_memory.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace piper::train {
namespace {

using strategy::Recompute;
using strategy::Strategy;

constexpr size_t kMostChanges = 3;

std::string amount(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

int64_t fullest_bytes(cost::ExecutorEstimator& estimator, const Strategy& s) {
  int64_t most = 0;
  for (const cost::StageMemory& stage : estimator.memory(s)) most = std::max(most, stage.total());
  return most;
}

struct Change {
  std::string flags;
  Strategy strategy;
};

// On the same ranks, the gentlest first: optimizer states divided, more recomputation, smaller
// micro-batches, both, gradients and weights divided, experts over more ranks, states and
// activations in host memory (`in_host_memory`: the flag that says where it is, if one is needed).
std::vector<Change> changes(const Strategy& s, const std::string& in_host_memory) {
  std::vector<Change> list;
  const auto divide = [&](int64_t zero) {
    if (zero <= s.zero || (s.mesh.num_replicas() == 1 && s.mesh.edp() == 1)) return;
    list.push_back({fmt::format("--zero {}", zero), s});
    list.back().strategy.zero = zero;
  };
  divide(1);
  for (const Recompute recompute : strategy::kRecomputes) {
    if (recompute <= s.recompute) continue;
    list.push_back({fmt::format("--recompute {}", strategy::name(recompute)), s});
    list.back().strategy.recompute = recompute;
  }
  const auto smaller = [&](Strategy from, const std::string& also) {
    if (from.micro_batch_sequences == 1) return;
    from.num_micro_batches *= from.micro_batch_sequences;
    from.micro_batch_sequences = 1;
    list.push_back(
        {fmt::format("--micro-batch 1 --num-micro-batches {}{}", from.num_micro_batches, also),
         from});
  };
  smaller(s, "");
  Strategy full = s;
  full.recompute = Recompute::kFull;
  if (s.recompute != Recompute::kFull) smaller(full, " --recompute full");
  divide(2);
  divide(3);
  for (int64_t ep = s.mesh.ep * 2; ep <= s.mesh.ranks_per_stage(); ep *= 2) {
    list.push_back({fmt::format("--ep {}", ep), s});
    list.back().strategy.mesh.ep = ep;
  }
  for (const strategy::Offload offload : strategy::kOffloads) {
    if (s.offload != strategy::Offload::kNone || offload == strategy::Offload::kNone) continue;
    list.push_back({fmt::format("--offload {}{}", strategy::name(offload), in_host_memory), s});
    list.back().strategy.offload = offload;
  }
  return list;
}

std::string held_or_none(int64_t bytes) { return bytes < 0 ? "–" : amount(bytes); }

std::string table_of(const nn::OutOfMemory& error, const cost::StageMemory& predicted,
                     const HeldState& held) {
  using report::Align;
  report::Table table;
  table.columns = {{""}, {"predicted", Align::kRight}, {"held", Align::kRight}};
  const int64_t state = std::max<int64_t>(held.weights, 0) + std::max<int64_t>(held.gradients, 0) +
                        std::max<int64_t>(held.optimizer, 0);
  table.rows = {{"weights", amount(predicted.weights), held_or_none(held.weights)},
                {"gradients", amount(predicted.gradients), held_or_none(held.gradients)},
                {"optimizer", amount(predicted.optimizer), held_or_none(held.optimizer)},
                {"activations and buffers", amount(predicted.total() - predicted.state()),
                 amount(std::max<int64_t>(0, error.live_bytes - state))},
                {"asked for in vain", "", amount(error.wanted_bytes)},
                {"all", amount(predicted.total()), amount(error.live_bytes + error.wanted_bytes)}};
  return report::to_text(table);
}

// "2.00 GiB" at the begin of the words.
int64_t bytes_in_words(const std::string& words) {
  char* end = nullptr;
  const double count = std::strtod(words.c_str(), &end);
  const std::string_view unit(end);
  const double scale = unit.starts_with(" KiB")   ? 0x1p10
                       : unit.starts_with(" MiB") ? 0x1p20
                       : unit.starts_with(" GiB") ? 0x1p30
                                                  : 1;
  return static_cast<int64_t>(count * scale);
}

}  // namespace

nn::OutOfMemory out_of_device_memory(const std::string& said, Rank rank, int64_t held) {
  // c10::OutOfMemoryError has no member that says how much was wanted: its text is all there is.
  constexpr std::string_view kWanted = "Tried to allocate ";
  const size_t at = said.find(kWanted);
  const int64_t wanted =
      at == std::string::npos ? 0 : bytes_in_words(said.substr(at + kWanted.size()));
  return {rank, wanted, held, 0};
}

std::vector<std::string> changes_that_fit(const model::Model& model, const Strategy& s,
                                          const cluster::Cluster& cluster, int64_t limit_bytes) {
  const cluster::Cluster priced = cost::with_some_speed(cluster, s.precision);
  cost::ExecutorEstimator estimator(model, priced, s.precision, s.sequence);
  std::vector<std::string> fitting;
  for (const Change& change : changes(s, cluster.kind == "cpu" ? " --host-folder DIR" : "")) {
    if (fitting.size() == kMostChanges) break;
    if (!strategy::contradictions(change.strategy, model).empty() ||
        !strategy::untrainable(model, change.strategy).empty())
      continue;
    const int64_t needed = fullest_bytes(estimator, change.strategy);
    if (needed <= limit_bytes)
      fitting.push_back(fmt::format("{} (needs {})", change.flags, amount(needed)));
  }
  return fitting;
}

std::string explain_out_of_memory(const nn::OutOfMemory& error, const model::Model& model,
                                  const Strategy& s, const cluster::Cluster& cluster,
                                  const HeldState& held, const std::string& where) {
  const strategy::Coordinates at = strategy::RankLayout(s).coordinates(error.rank);
  const cluster::Cluster priced = cost::with_some_speed(cluster, s.precision);
  cost::ExecutorEstimator estimator(model, priced, s.precision, s.sequence);
  const cost::StageMemory predicted = estimator.memory(s).at(static_cast<size_t>(at.pp));
  const int64_t limit = error.limit_bytes > 0 ? error.limit_bytes : error.live_bytes;
  const std::vector<std::string> fitting = changes_that_fit(model, s, cluster, limit);
  return fmt::format(
      "{} (stage {}{}{})\n{}what would help: {}", error.what(), at.pp, where.empty() ? "" : ", ",
      where, table_of(error, predicted, held),
      fitting.empty()
          ? "no change of one or two axes on these ranks fits; more ranks, fewer tokens "
            "a sequence, or a smaller model (`piper plan` finds what fits)"
          : fmt::format("{}", fmt::join(fitting, ", or ")));
}

}  // namespace piper::train
