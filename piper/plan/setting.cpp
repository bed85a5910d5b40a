#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/plan/setting.h>

#include <algorithm>
#include <numeric>

namespace piper::plan {
namespace {

constexpr int64_t kGpuTokens = int64_t{1} << 22;
constexpr int64_t kGpuSequence = 4096, kCpuSequence = 256;
constexpr int64_t kSequencesPerDevice = 4, kLeastCpuSequences = 16;

bool is_gpu(const Request& r) { return r.cluster.kind == "gpu"; }

int64_t default_sequence(const Request& r) {
  const int64_t most = is_gpu(r) ? kGpuSequence : kCpuSequence;
  return r.model.max_positions > 0 ? std::min(most, r.model.max_positions) : most;
}

int64_t default_batch(const Request& r, int64_t devices, int64_t sequence) {
  int64_t batch = std::max(kSequencesPerDevice * devices,
                           is_gpu(r) ? kGpuTokens / sequence : kLeastCpuSequences);
  return (batch + devices - 1) / devices * devices;
}

strategy::Precision default_precision(const Request& r) {
  const auto has = [&](strategy::Precision precision) {
    return r.cluster.compute.contains(strategy::name(precision));
  };
  if (is_gpu(r) && has(strategy::Precision::kBf16)) return strategy::Precision::kBf16;
  // A machine that was profiled in one other precision is planned for in that.
  if (!has(strategy::Precision::kFp32))
    for (const auto other : {strategy::Precision::kBf16, strategy::Precision::kFp64})
      if (has(other)) return other;
  return strategy::Precision::kFp32;
}

class Checker {
 public:
  Checker(const Request& request, Setting& setting) : r_(request), s_(setting) {}

  void check() {
    at_least_one("--pp", r_.fixed.pp);
    at_least_one("--ep", r_.fixed.ep);
    at_least_one("--dp", r_.fixed.dp);
    at_least_one("--micro-batch", r_.fixed.micro_batch_sequences);
    at_least_one("--num-micro-batches", r_.fixed.num_micro_batches);
    if (!problems_.empty()) return;
    check_devices();
    if (!problems_.empty()) return;
    check_pipeline();
    check_experts();
    check_batch();
    if (r_.model.learned_positions > 0 && s_.sequence > r_.model.learned_positions)
      problems_.push_back(fmt::format("--sequence is {}; allowed: at most the {} positions of {}",
                                      s_.sequence, r_.model.learned_positions, r_.model.name));
  }
  void finish() const {
    if (!problems_.empty()) throw InvalidInput(problems_);
  }

 private:
  void at_least_one(const char* flag, const std::optional<int64_t>& value) {
    if (value && *value < 1)
      problems_.push_back(fmt::format("{} is {}; allowed: an integer from 1", flag, *value));
  }

  void check_devices() {
    const FixedAxes& f = r_.fixed;
    if (s_.num_devices > r_.cluster.num_devices())
      problems_.push_back(fmt::format("--devices is {}; allowed: 1 to {}, all that cluster {} has",
                                      s_.num_devices, r_.cluster.num_devices(), r_.cluster.name));
    if (f.pp && f.dp && *f.pp * *f.dp != s_.num_devices)
      problems_.push_back(
          fmt::format("--pp {} x --dp {} is {} ranks, --devices is {}; allowed: equal", *f.pp,
                      *f.dp, *f.pp * *f.dp, s_.num_devices));
    else
      for (const auto& [flag, value] : {std::pair{"--pp", f.pp}, {"--dp", f.dp}})
        if (value && s_.num_devices % *value != 0)
          problems_.push_back(fmt::format("{} {} does not divide {} devices; {}", flag, *value,
                                          s_.num_devices,
                                          nearest_values(divisors(s_.num_devices), *value)));
  }

  int64_t fixed_dp() const {  // 0: free
    if (r_.fixed.dp) return *r_.fixed.dp;
    return r_.fixed.pp ? s_.num_devices / *r_.fixed.pp : 0;
  }

  void check_pipeline() {
    const int64_t dp = fixed_dp();
    const int64_t pp = dp > 0 ? s_.num_devices / dp : 0;
    if (pp > r_.model.num_layers())
      problems_.push_back(
          fmt::format("--pp {} is more than the {} layers of {}; allowed: at most {} (eq. 9)", pp,
                      r_.model.num_layers(), r_.model.name, deepest()));
  }

  int64_t deepest() const {
    int64_t most = 1;
    for (const int64_t pp : divisors(s_.num_devices))
      if (pp <= r_.model.num_layers()) most = pp;
    return most;
  }

  void check_experts() {
    if (!r_.fixed.ep) return;
    const int64_t ep = *r_.fixed.ep;
    const std::vector<int64_t> degrees = expert_degrees(r_.model);
    if (!std::ranges::binary_search(degrees, ep)) {
      problems_.push_back(
          r_.model.num_experts() == 0
              ? fmt::format("--ep is {}, but {} has no experts; allowed: 1", ep, r_.model.name)
              : fmt::format("--ep {} does not divide {} experts; {} (eq. 8)", ep,
                            r_.model.num_experts(), nearest_values(degrees, ep)));
      return;
    }
    const int64_t ranks = fixed_dp() > 0 ? fixed_dp() : s_.num_devices;
    if (ranks % ep != 0)
      problems_.push_back(fmt::format("--ep {} does not divide the {} ranks of a stage; {} (eq. 7)",
                                      ep, ranks, nearest_values(divisors(ranks), ep)));
  }

  void check_batch() {
    const FixedAxes& f = r_.fixed;
    const int64_t dp = fixed_dp(), batch = s_.global_batch_sequences;
    if (dp == 0) return;
    const int64_t unit = dp * f.micro_batch_sequences.value_or(1) * f.num_micro_batches.value_or(1);
    if (batch % unit == 0 && (!(f.micro_batch_sequences && f.num_micro_batches) || batch == unit))
      return;
    problems_.push_back(
        fmt::format("--global-batch {} is not dp x micro-batch x count = {} x {} x {}; {}", batch,
                    dp, f.micro_batch_sequences ? std::to_string(*f.micro_batch_sequences) : "any",
                    f.num_micro_batches ? std::to_string(*f.num_micro_batches) : "any",
                    batch < unit || (f.micro_batch_sequences && f.num_micro_batches)
                        ? fmt::format("{} does", unit)
                        : nearest_values({batch / unit * unit, (batch / unit + 1) * unit}, batch)));
  }

  const Request& r_;
  Setting& s_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= n; ++d)
    if (n % d == 0) {
      low.push_back(d);
      if (d != n / d) high.push_back(n / d);
    }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<int64_t> expert_degrees(const model::Model& model) {
  int64_t common = 0;
  for (const model::Layer& layer : model.layers)
    common = std::gcd(common, layer.feed_forward.num_experts);
  return common == 0 ? std::vector<int64_t>{1} : divisors(common);
}

std::string nearest_values(const std::vector<int64_t>& allowed, int64_t value) {
  const auto above = std::ranges::lower_bound(allowed, value);
  if (above == allowed.end()) return fmt::format("{} does", allowed.back());
  if (*above == value || above == allowed.begin()) return fmt::format("{} does", *above);
  return fmt::format("{} and {} do", *(above - 1), *above);
}

Setting make_setting(const Request& request) {
  Setting s;
  s.request = &request;
  const auto settle = [&](const char* what, int64_t given, int64_t fallback, const char* why) {
    if (given != 0) return given;
    s.defaults.push_back({what, std::to_string(fallback), why});
    return fallback;
  };
  const FixedAxes& f = request.fixed;
  const bool both = f.pp && f.dp && *f.pp > 0 && *f.dp > 0;
  s.num_devices =
      settle("devices", request.num_devices, both ? *f.pp * *f.dp : request.cluster.num_devices(),
             both ? "--pp x --dp" : "all of the cluster");
  s.sequence = settle("sequence", request.sequence, default_sequence(request),
                      is_gpu(request) ? "the smaller of 4096 and the model's positions"
                                      : "the smaller of 256 and the model's positions");
  const bool all = both && f.micro_batch_sequences && f.num_micro_batches;
  s.global_batch_sequences =
      settle("global_batch", request.global_batch_sequences,
             all ? *f.dp * *f.micro_batch_sequences * *f.num_micro_batches
                 : default_batch(request, s.num_devices, s.sequence),
             all ? "dp x micro-batch x count"
             : is_gpu(request)
                 ? "about 4 M tokens, at least 4 sequences a device (a larger batch raises the MFU)"
                 : "4 sequences a device, at least 16 (a larger batch raises the MFU)");
  s.precision = request.precision.value_or(default_precision(request));
  if (!request.precision)
    s.defaults.push_back({"precision", strategy::name(s.precision),
                          s.precision == strategy::Precision::kBf16 ? "the usual on this device"
                          : is_gpu(request) ? "the cluster has no figures for bf16"
                                            : "what is trained on a CPU"});
  s.memory_limit_bytes = static_cast<int64_t>(request.usable_memory *
                                              static_cast<double>(request.cluster.memory_bytes));
  Checker checker(request, s);
  checker.check();
  checker.finish();
  return s;
}

}  // namespace piper::plan
