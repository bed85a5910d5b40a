#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cost/segment_time.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/exchange_pick.h>
#include <piper/plan/threads.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <utility>

namespace piper::plan {
namespace {

using cost::AllToAllConfig;
using strategy::AllToAll;
using strategy::Strategy;

constexpr int64_t kTrainerElement = 2;  // cost::LayerPrice prices rows of the combine in two bytes

// The mixture layer that chooses most experts for a token; nullptr without one.
const model::FeedForward* most_chosen(const model::Model& model) {
  const model::FeedForward* most = nullptr;
  for (const model::Layer& layer : model.layers)
    if (const model::FeedForward& f = layer.feed_forward;
        f.is_moe() && (most == nullptr || f.top_k > most->top_k))
      most = &f;
  return most;
}

double largest_top_k(const model::Model& model) {
  const model::FeedForward* most = most_chosen(model);
  return most == nullptr ? 1 : static_cast<double>(most->top_k);
}

// Seconds of one flat exchange, and of what factors multiply: the same, but where rows for one node
// cross once.
struct Flat {
  double seconds = 0, plain = 0;
  double part() const { return plain > 0 ? seconds / plain : 1; }
};

Flat flat_of(const model::Model& model, const cluster::Cluster& cluster, const ExchangeTask& task,
             const cost::TrainerProfile* trainer, const cost::Rates* rates) {
  if (rates == nullptr || trainer == nullptr) {
    const double bytes = task.load.pair_bytes * task.load.hot;
    const double seconds = cost::all_to_all_seconds(cluster, task.group, bytes);
    return {seconds, seconds};
  }
  const double bytes = task.load.pair_bytes * task.load.hot * static_cast<double>(task.group.size);
  const auto by = [&](double copies) {
    return rates->all_to_all(task.group.size, task.group.stride, bytes, copies).total();
  };
  return {by(trainer->deduplicates_rows ? largest_top_k(model) : 1), by(1)};
}

std::string why(const ExchangeVerdict& verdict) {
  const auto& options = verdict.options;
  const auto own = std::ranges::find_if(options, &ExchangeOption::chosen);
  const auto other = std::ranges::find_if(options, [&](const ExchangeOption& o) {
    return o.config.algorithm != own->config.algorithm;
  });
  std::string text =
      fmt::format("{} of {} a pair among {} ranks: {} takes {}", "one exchange",
                  format_bytes(verdict.task.load.pair_bytes), verdict.task.group.size,
                  to_text(own->config), format_seconds(own->seconds));
  if (!cost::is_plain(own->config.algorithm))
    text += fmt::format(
        ", {:.2f} of one message a pair (assumed: the ratio of the two simulated), and {} of "
        "scratch",
        own->over_flat, format_bytes(own->scratch_bytes));
  if (other != options.end())
    text += fmt::format("; {} would take {:.2f} of that", to_text(other->config),
                        other->seconds / own->seconds);
  if (other != options.end() && other->seconds < own->seconds)
    text += ": so near that their steps were simulated, and the former was faster";
  return text;
}

}  // namespace

ExchangeTask exchange_task(const model::Model& model, const Strategy& s, double imbalance,
                           int64_t element_bytes) {
  imbalance = s.capacity.limited(imbalance);
  ExchangeTask task{.group = {.stride = s.mesh.etp, .size = s.mesh.ep}, .load = {0, imbalance}};
  const double tokens = static_cast<double>(s.micro_batch_sequences * s.sequence) /
                        static_cast<double>(s.mesh.ranks_per_sequence());
  task.routed = {most_chosen(model),
                 static_cast<double>(model.hidden) *
                     static_cast<double>(element_bytes > 0 ? element_bytes
                                                           : strategy::element_bytes(s.precision))};
  task.load.pair_bytes = tokens * largest_top_k(model) * s.capacity.balanced_part() *
                         task.routed.row_bytes / static_cast<double>(s.mesh.ep);
  if (model.num_moe_layers() == 0) task.group.size = 1;
  return task;
}

cost::ExchangeLoad ExchangeTask::load_on(const cost::ExchangeSite& site) const {
  cost::ExchangeLoad full = load;
  full.spread = routed.on(site);
  return full;
}

ExchangeAxis::ExchangeAxis(const model::Model& model, const cluster::Cluster& cluster,
                           const cost::FixedAllToAll& fixed, const cost::TrainerProfile* trainer,
                           const cost::Rates* rates, bool is_runnable)
    : model_(model),
      cluster_(cluster),
      fixed_(fixed),
      trainer_(trainer),
      rates_(rates),
      is_runnable_(is_runnable) {
  if (trainer_ != nullptr && !trainer_->chooses_exchange && !fixed_.algorithm)
    fixed_.algorithm = AllToAll::kFlat;
}

ExchangeAxis::Key ExchangeAxis::key_of(const ExchangeTask& task) {
  return {task.group.size, task.group.stride, task.load.pair_bytes, task.deduplicates};
}

AllToAllConfig ExchangeAxis::pick(const ExchangeTask& task) const {
  cost::FixedAllToAll fixed = fixed_;
  fixed.deduplicates = task.deduplicates;
  return pick_exchange(cluster_, task.group, task.load_on(cost::ExchangeSite(cluster_, task.group)),
                       fixed, flat_of(model_, cluster_, task, trainer_, rates_).part());
}

void ExchangeAxis::choose(Strategy& s, double imbalance) { choose({&s, 1}, {&imbalance, 1}, 1); }

void ExchangeAxis::choose(std::span<Strategy> strategies, std::span<const double> imbalances,
                          int64_t num_threads, bool of_rows) {
  std::vector<ExchangeTask> tasks;
  std::vector<std::pair<ExchangeTask, AllToAllConfig*>> open;  // each kind once
  for (size_t i = 0; i < strategies.size(); ++i) {
    tasks.push_back(
        exchange_task(model_, strategies[i], imbalances[i], rates_ ? kTrainerElement : 0));
    tasks.back().deduplicates =
        !of_rows && !strategies[i].capacity.pads && (!is_runnable_ || strategies[i].mesh.etp == 1);
    if (tasks.back().group.size <= 1) continue;
    const auto [found, is_new] = chosen_.try_emplace(key_of(tasks.back()));
    if (is_new) open.emplace_back(tasks.back(), &found->second);
  }
  share_items(num_threads, std::ssize(open), [&](int64_t, int64_t item) {
    auto& [task, config] = open[static_cast<size_t>(item)];
    *config = pick(task);
  });
  for (size_t i = 0; i < strategies.size(); ++i) {
    const bool has_one = tasks[i].group.size > 1;
    const AllToAllConfig config = has_one ? chosen_.at(key_of(tasks[i])) : AllToAllConfig{};
    strategies[i].all_to_all = config.algorithm;
    strategies[i].all_to_all_chunk_bytes = config.chunk_bytes;
  }
}

bool ExchangeAxis::may_fall_back(const Strategy& s) const {
  return !cost::is_plain(s.all_to_all) && !fixed_.algorithm;
}

Strategy ExchangeAxis::with_plain_exchange(Strategy s) const {
  const bool flat_is_cheaper = trainer_ != nullptr && trainer_->deduplicates_rows;
  s.all_to_all = flat_is_cheaper ? AllToAll::kFlat
                                 : cost::plain_exchange(cost::ExchangeSite(
                                       cluster_, {.stride = s.mesh.etp, .size = s.mesh.ep}));
  s.all_to_all_chunk_bytes = 0;
  return s;
}

ExchangeVerdict explain_exchange(const model::Model& model, const cluster::Cluster& cluster,
                                 const Strategy& s, const cost::TrainerProfile* trainer,
                                 const cost::Rates* rates, double imbalance) {
  ExchangeVerdict verdict{.task = exchange_task(model, s, imbalance, rates ? kTrainerElement : 0),
                          .options = {},
                          .why = {}};
  const ExchangeTask& task = verdict.task;
  if (task.group.size <= 1) return verdict;
  const Flat flat = flat_of(model, cluster, task, trainer, rates);
  const cost::ExchangeSite site(cluster, task.group);
  const cost::ExchangeLoad load = task.load_on(site);
  const AllToAllConfig own = cost::all_to_all_of(s);
  // A library orders its messages itself, and so does who leaves out what crosses twice.
  const bool is_rotated = flat.part() >= 1 && (trainer == nullptr || trainer->chooses_exchange);
  for (cost::PricedAllToAll p :
       cost::priced_all_to_alls(site, load, {.deduplicates = !s.capacity.pads})) {
    const bool chosen = p.config.algorithm == own.algorithm;
    if (chosen && p.config != own)
      p = {own, cost_over_flat(site, own, load),
           scratch_bytes(site, own, load.pair_bytes, load.spread)};
    const bool is_flat = p.config.algorithm == AllToAll::kFlat;
    const double seconds =
        is_flat ? (is_rotated ? p.factor : 1) * flat.seconds : p.factor * flat.plain;
    verdict.options.push_back(
        {.config = p.config,
         .seconds = seconds,
         .over_flat = flat.seconds > 0 ? seconds / flat.seconds : 1,
         .scratch_bytes = p.scratch_bytes,
         .chosen = chosen,
         .deduplicated = is_flat && flat.part() < 1,
         .simulated = is_flat && is_rotated && p.factor != 1,
         .measured = is_flat && is_measured_all_to_all(cluster, task.group) && rates == nullptr});
  }
  std::ranges::stable_sort(verdict.options, {},
                           [](const ExchangeOption& o) { return std::pair(o.seconds, !o.chosen); });
  verdict.why = why(verdict);
  return verdict;
}

const char* source_of(const ExchangeOption& o) {
  if (o.config.algorithm == AllToAll::kNodeAware) return "links";
  if (o.config.algorithm != AllToAll::kFlat || o.simulated)
    return "assumed: times the ratio of the two simulated";
  if (o.deduplicated) return "links; rows for one node cross once";
  return o.measured ? "measured curve" : "links";
}

Json to_json(const ExchangeVerdict& verdict) {
  Json options = Json::array();
  for (const ExchangeOption& o : verdict.options)
    options.push_back({{"all_to_all", strategy::name(o.config.algorithm)},
                       {"all_to_all_chunk_bytes", o.config.chunk_bytes},
                       {"seconds", o.seconds},
                       {"over_flat", o.over_flat},
                       {"scratch_bytes", o.scratch_bytes},
                       {"chosen", o.chosen},
                       {"source", source_of(o)}});
  return {{"ranks", verdict.task.group.size},
          {"bytes_per_pair", verdict.task.load.pair_bytes},
          {"why", verdict.why},
          {"options", options}};
}

}  // namespace piper::plan
