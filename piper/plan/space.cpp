#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/reduction_axis.h>
#include <piper/plan/space.h>
#include <piper/plan/split.h>

#include <algorithm>

namespace piper::plan {
namespace {

using strategy::PipelineSchedule;
using strategy::Recompute;

constexpr int64_t kMostMicroBatchSequences = 64;
constexpr size_t kMostListed = 6;

std::string list(const std::vector<int64_t>& values) {
  if (values.size() <= kMostListed) return fmt::format("{}", fmt::join(values, ", "));
  const std::vector<int64_t> head(values.begin(), values.begin() + kMostListed - 1);
  return fmt::format("{}, ..., {} ({} degrees)", fmt::join(head, ", "), values.back(),
                     values.size());
}

class SpaceMaker {
 public:
  explicit SpaceMaker(const Setting& setting)
      : s_(setting), degrees_(expert_degrees(setting.model())) {}

  Space make() {
    reject_depths();
    for (const int64_t pp : depths()) add_depth(pp);
    reject_expert_degrees();
    std::ranges::sort(space_.families, [](const Family& a, const Family& b) {
      return std::pair(a.pp, a.ep) < std::pair(b.pp, b.ep);
    });
    return std::move(space_);
  }

 private:
  int64_t layers() const { return s_.model().num_layers(); }
  bool wanted_pp(int64_t pp) const {
    if (s_.fixed().pp) return pp == *s_.fixed().pp;
    return !s_.fixed().dp || pp * *s_.fixed().dp == s_.num_devices;
  }
  bool wanted_ep(int64_t ep) const { return !s_.fixed().ep || ep == *s_.fixed().ep; }
  bool depth_is_free() const { return !s_.fixed().pp && !s_.fixed().dp; }

  std::vector<int64_t> depths() const {
    std::vector<int64_t> found;
    for (const int64_t pp : divisors(s_.num_devices))
      if (pp <= layers() && wanted_pp(pp)) found.push_back(pp);
    return found;
  }

  void reject(std::string family, std::string constraint, std::string equation,
              std::string change) {
    space_.excluded.push_back(
        {std::move(family), std::move(constraint), std::move(equation), std::move(change)});
  }

  void reject_depths() {
    if (!depth_is_free()) return;
    const int64_t n = s_.num_devices;
    std::vector<int64_t> odd, deep;
    for (int64_t pp = 2; pp <= std::min(layers(), n); ++pp)
      if (n % pp != 0) odd.push_back(pp);
    for (const int64_t pp : divisors(n))
      if (pp > layers()) deep.push_back(pp);
    if (!odd.empty())
      reject(fmt::format("pp {}", list(odd)), fmt::format("does not divide {} devices", n), "eq. 7",
             fmt::format("{} devices for pp {}", (n / odd.front() + 1) * odd.front(), odd.front()));
    if (!deep.empty())
      reject(fmt::format("pp {}", list(deep)),
             fmt::format("more stages than the {} layers of {}", layers(), s_.model().name),
             "eq. 9", fmt::format("pp {}", depths().empty() ? 1 : depths().back()));
  }

  bool batch_divides(int64_t dp) const {
    const int64_t unit = dp * s_.fixed().micro_batch_sequences.value_or(1) *
                         s_.fixed().num_micro_batches.value_or(1);
    const bool exact = s_.fixed().micro_batch_sequences && s_.fixed().num_micro_batches;
    return exact ? s_.global_batch_sequences == unit : s_.global_batch_sequences % unit == 0;
  }

  void add_depth(int64_t pp) {
    const int64_t dp = s_.num_devices / pp;
    if (!batch_divides(dp)) {
      const int64_t unit = dp * s_.fixed().micro_batch_sequences.value_or(1) *
                           s_.fixed().num_micro_batches.value_or(1);
      reject(
          fmt::format("pp {} (dp {})", pp, dp),
          fmt::format("{} sequences are not a multiple of {}", s_.global_batch_sequences, unit),
          "global batch = DP x micro-batch x count",
          fmt::format("--global-batch {}", (s_.global_batch_sequences + unit - 1) / unit * unit));
      return;
    }
    if (s_.request->paper_form) return add_paper_depth(pp, dp);
    for (const int64_t ep : degrees_)
      if (wanted_ep(ep) && dp % ep == 0) space_.families.push_back({pp, ep, dp});
  }

  // PP x EP = devices: one family a depth.
  void add_paper_depth(int64_t pp, int64_t ep) {
    if (!wanted_ep(ep)) return;
    const std::string family = fmt::format("pp {} x ep {}", pp, ep);
    const int64_t fast = fast_domain(s_.cluster());
    if (!std::ranges::binary_search(degrees_, ep))
      return reject(family,
                    fmt::format("ep {} does not divide {} experts", ep, s_.model().num_experts()),
                    "eq. 8", fmt::format("ep: {}", nearest_values(degrees_, ep)));
    if (layers() % pp != 0)
      return reject(family, fmt::format("pp {} does not divide {} layers", pp, layers()),
                    "eq. 9 (paper form)",
                    fmt::format("pp: {}", nearest_values(divisors(layers()), pp)));
    if (ep > fast)
      return reject(family, fmt::format("ep {} leaves the fast domain of {} devices", ep, fast),
                    "eq. 10", "without --paper it is priced instead");
    space_.families.push_back({pp, ep, ep});
  }

  // Degrees that some depth would allow but the experts do not, and the other way round.
  void reject_expert_degrees() {
    if (s_.request->paper_form || s_.fixed().ep) return;
    const int64_t experts = s_.model().num_experts();
    std::vector<int64_t> many;
    for (const int64_t ep : divisors(s_.num_devices)) {
      const bool fits_a_stage =
          std::ranges::any_of(depths(), [&](int64_t pp) { return s_.num_devices / pp % ep == 0; });
      if (ep == 1 || !fits_a_stage || std::ranges::binary_search(degrees_, ep)) continue;
      if (ep > degrees_.back())
        many.push_back(ep);
      else
        reject(fmt::format("ep {}", ep),
               fmt::format("ep {} does not divide {} experts", ep, experts), "eq. 8",
               fmt::format("ep: {}", nearest_values(degrees_, ep)));
    }
    if (!many.empty())
      reject(fmt::format("ep {}", list(many)),
             experts == 0
                 ? fmt::format("{} has no experts", s_.model().name)
                 : fmt::format("more ranks than the {} experts of {}", experts, s_.model().name),
             "eq. 8",
             experts == 0 ? "ep 1"
                          : fmt::format("ep {}: further ranks hold replicas of the experts",
                                        degrees_.back()));
    for (const int64_t ep : degrees_) reject_stages_without(ep);
  }

  void reject_stages_without(int64_t ep) {
    std::vector<int64_t> without;
    int64_t deepest = 0;
    for (const int64_t pp : depths())
      if (s_.num_devices / pp % ep != 0)
        without.push_back(pp);
      else
        deepest = pp;
    if (without.empty()) return;
    reject(fmt::format("ep {} with pp {}", ep, list(without)),
           fmt::format("the {} ranks of a stage are not a multiple of ep {}",
                       s_.num_devices / without.front(), ep),
           "eq. 7",
           deepest > 0 ? fmt::format("pp {}", deepest)
                       : fmt::format("{} devices", (s_.num_devices / ep + 1) * ep));
  }

  const Setting& s_;
  std::vector<int64_t> degrees_;
  Space space_;
};

template <class T>
std::vector<T> choices(const std::optional<T>& fixed, std::vector<T> all) {
  return fixed ? std::vector<T>{*fixed} : all;
}

}  // namespace

Space make_space(const Setting& setting) { return SpaceMaker(setting).make(); }

int64_t fast_domain(const cluster::Cluster& cluster) {
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    if (cluster.levels[level].name == "switch_group") return cluster.devices_of_level(level);
  return cluster.devices_per_node();
}

std::vector<std::vector<int64_t>> splits(const Setting& s, const strategy::Strategy& strategy,
                                         cost::Estimator& estimator) {
  const int64_t pp = strategy.mesh.pp;
  std::vector<std::vector<int64_t>> found = {strategy::even_split(s.model().num_layers(), pp)};
  if (pp == 1 || s.request->paper_form) return found;
  const cost::PassSeconds pass = estimator.pass_seconds(strategy);
  const std::vector<int64_t> balanced = balanced_split(pass.layers, pass.embedding, pass.head, pp);
  if (balanced != found.front()) found.push_back(balanced);
  return found;
}

void for_each_strategy(const Setting& s, const Family& family, cost::Estimator& estimator,
                       ExchangeAxis& exchange,
                       const std::function<void(const strategy::Strategy&)>& visit) {
  strategy::Strategy strategy{.model = s.model().name,
                              .cluster = s.cluster().name,
                              .mesh = {.pp = family.pp, .ep = family.ep, .dp = family.dp},
                              .precision = s.precision,
                              .sequence = s.sequence,
                              .global_batch_sequences = s.global_batch_sequences};
  const FixedAxes& fixed = s.fixed();
  strategy.capacity = fixed.capacity;
  strategy.reduction = fixed.reduction.value_or(
      cheaper_reduction(s.model(), s.cluster(), strategy.mesh, s.precision));
  const int64_t per_rank = s.global_batch_sequences / family.dp;
  const std::vector<PipelineSchedule> schedules =
      choices(fixed.schedule, family.pp == 1
                                  ? std::vector{PipelineSchedule::k1F1B}
                                  : std::vector{PipelineSchedule::k1F1B, PipelineSchedule::kGPipe});
  for (const int64_t size : divisors(per_rank)) {
    if (fixed.micro_batch_sequences ? size != *fixed.micro_batch_sequences
                                    : size > kMostMicroBatchSequences && !fixed.num_micro_batches)
      continue;
    if (fixed.num_micro_batches && per_rank / size != *fixed.num_micro_batches) continue;
    strategy.micro_batch_sequences = size;
    strategy.num_micro_batches = per_rank / size;
    exchange.choose(strategy);
    for (const Recompute recompute :
         choices(fixed.recompute, {strategy::kRecomputes.begin(), strategy::kRecomputes.end()})) {
      strategy.recompute = recompute;
      for (const std::vector<int64_t>& split : splits(s, strategy, estimator)) {
        strategy.layers_per_stage = split;
        for (const PipelineSchedule schedule : schedules) {
          strategy.schedule = schedule;
          visit(strategy);
        }
      }
    }
  }
}

}  // namespace piper::plan
