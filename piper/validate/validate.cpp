#include <fmt/format.h>
#include <piper/cost/mfu.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/count.h>
#include <piper/validate/validate.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <tuple>

namespace piper::validate {
namespace {

// FLOPs of a step as the row's source counts them.
double counted_flops(const Case& c, bool with_recompute) {
  model::TokenFlops token = model::token_flops(c.model, c.strategy.sequence);
  if (c.counts_all_pairs) token.attention_scores *= 2;
  double forward = token.forward();
  if (c.strategy.capacity.is_limited())
    forward -= token.routed_experts * (1 - cost::kept_part(c.model, c.strategy));
  double passes = 3;
  if (with_recompute && c.strategy.recompute == strategy::Recompute::kFull)
    passes = 4 - token.head / forward;  // the head is not run again
  return passes * forward * static_cast<double>(c.strategy.sequence) *
         static_cast<double>(c.strategy.global_batch_sequences);
}

double predicted_value(const Case& c, const cost::Estimate& e) {
  const auto world = static_cast<double>(c.strategy.mesh.world());
  switch (c.quantity) {
    case Quantity::kStepSeconds:
      return e.seconds / c.unit_scale;
    case Quantity::kTokensPerSecond:
      return static_cast<double>(c.strategy.sequence * c.strategy.global_batch_sequences) /
             (e.seconds * world) / c.unit_scale;
    case Quantity::kModelFlops:
      return counted_flops(c, false) / (e.seconds * world) / c.unit_scale;
    case Quantity::kHardwareFlops:
      return counted_flops(c, true) / (e.seconds * world) / c.unit_scale;
    case Quantity::kMfu: {
      const double peak = cost::compute_of(c.cluster, c.strategy.precision).peak_flops_per_second;
      return counted_flops(c, false) / (e.seconds * world * peak) / c.unit_scale;
    }
    case Quantity::kPeakBytes: {
      if (!c.trainer.reports_states_only) return e.peak_bytes / c.unit_scale;
      // States and two buffers of a micro-batch's hidden states.
      const double hidden = 4.0 * static_cast<double>(c.strategy.micro_batch_sequences *
                                                      c.strategy.sequence * c.model.hidden);
      return (e.states_bytes + hidden + c.trainer.reported_bytes) / c.unit_scale;
    }
  }
  return 0;
}

bool is_calibration(const MeasuredRow& row, const cost::Calibration& calibration) {
  return std::ranges::any_of(calibration.rows, [&](const cost::CalibrationRow& r) {
    return row.source.find(r.source) != std::string::npos && row.model == r.model &&
           row.gpus == r.gpus && row.tp.value_or(0) == r.tp && row.pp.value_or(0) == r.pp &&
           row.micro_batch.value_or(0) == r.micro_batch && row.measured_value == r.measured_value;
  });
}

void set_errors(PricedRow& p, Quantity quantity, double measured) {
  const double ratio = p.predicted_value / measured;
  p.relative_error = ratio - 1;
  const bool falls = is_memory(quantity) || quantity == Quantity::kStepSeconds;
  p.step_error = falls ? ratio - 1 : 1 / ratio - 1;
}

PricedRow price_row(const MeasuredRow& row, const std::string& trainer) {
  PricedRow p{.row = row, .asked_trainer = trainer};
  const Case c = interpret(row, trainer);
  p.assumed_fields = c.assumed;
  p.not_priced_because = c.not_priced;
  if (!p.is_priced()) return p;
  p.is_memory = is_memory(c.quantity);
  p.is_moe = c.is_moe;
  p.trainer = c.trainer.name;
  p.device = c.cluster.device;
  p.precision = strategy::name(c.strategy.precision);
  p.calibration_row = is_calibration(row, c.trainer.calibration_of(c.cluster.device));
  cost::TrainerEstimator estimator(c.model, c.cluster, c.trainer, c.strategy.precision,
                                   c.strategy.sequence);
  const cost::Estimate e = estimator.estimate(c.strategy);
  p.predicted_value = predicted_value(c, e);
  p.predicted_seconds = e.seconds;
  p.predicted_bytes = e.peak_bytes;
  if (row.is_fit_row()) {
    const double limit =
        static_cast<double>(c.cluster.memory_bytes) * (1 - c.trainer.unusable_part);
    p.predicted_outcome = e.peak_bytes <= limit ? "ran" : "oom";
  }
  const std::optional<double> measured = row.is_fit_row() ? row.allocated_gb : row.measured_value;
  if (measured && *measured > 0) set_errors(p, c.quantity, *measured);
  return p;
}

// The same run in another unit knows the constant as well: it stays out of the statistics too.
bool same_run(const MeasuredRow& a, const MeasuredRow& b) {
  const auto run = [](const MeasuredRow& r) {
    return std::tie(r.source, r.model, r.gpu_type, r.layers, r.sequence, r.global_batch,
                    r.micro_batch, r.gpus, r.tp, r.pp, r.vpp, r.ep, r.etp, r.cp, r.zero,
                    r.recompute, r.precision);
  };
  return run(a) == run(b);
}

void note_same_runs(std::vector<PricedRow>& rows) {
  std::vector<MeasuredRow> fitted;
  for (const PricedRow& p : rows)
    if (p.calibration_row) fitted.push_back(p.row);
  for (PricedRow& p : rows)
    if (p.is_priced() && !p.is_memory)
      p.calibration_row =
          p.calibration_row ||
          std::ranges::any_of(fitted, [&](const MeasuredRow& r) { return same_run(r, p.row); });
}

bool is_grade_a(const MeasuredRow& row) { return row.grade == "A" || row.grade == "A-"; }

// What is on trial: a figure, priced, not fitted to.
bool counts(const PricedRow& p) {
  return p.is_priced() && !p.calibration_row && !p.row.is_fit_row() && p.row.measured_value;
}

// Words of a model's name in lower case: "Llama-3.1-70B [MCore]" gives llama, 3.1, 70b, mcore.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '.')
      words.back() += static_cast<char>(std::tolower(byte));
    else if (!words.back().empty())
      words.emplace_back();
  }
  return words;
}

bool is_version(std::string word) {
  if (word.starts_with("v")) word.erase(0, 1);
  return !word.empty() && word.find_first_not_of("0123456789.") == std::string::npos;
}

bool is_letters(const std::string& word) {
  return !word.empty() &&
         std::ranges::all_of(word, [](unsigned char c) { return std::isalpha(c) != 0; });
}

// The first word and, where it stands apart, the version: tables write LLAMA3.1_405B and
// Llama-3.1-405B for one model. A trainer's name in front of a model's ("MCore-GPT-32B") is none of
// a family.
std::string family_of(const PricedRow& p) {
  std::vector<std::string> words = words_of(p.row.model);
  if (words.size() > 1 && (words[0] == "mcore" || words[0] == "megatron") && is_letters(words[1]))
    words.erase(words.begin());
  const bool apart = words.size() > 1 && is_letters(words[0]) && is_version(words[1]);
  return apart ? words[0] + words[1] : words[0];
}

}  // namespace

std::vector<PricedRow> price_rows(const std::vector<MeasuredRow>& rows,
                                  const std::function<void(int64_t)>& progress,
                                  const std::string& trainer) {
  std::vector<PricedRow> priced;
  for (const MeasuredRow& row : rows) {
    priced.push_back(price_row(row, trainer));
    if (progress) progress(std::ssize(priced));
  }
  note_same_runs(priced);
  return priced;
}

std::optional<double> exact_efficiency(const PricedRow& row) {
  if (!row.is_priced() || row.is_memory || !row.row.measured_value) return std::nullopt;
  const Case c = interpret(row.row, row.asked_trainer);
  cost::TrainerEstimator estimator(c.model, c.cluster, c.trainer, c.strategy.precision,
                                   c.strategy.sequence);
  const bool falls = c.quantity == Quantity::kStepSeconds;  // with efficiency
  double low = 0.05, high = 5;
  const auto above = [&](double efficiency) {
    estimator.set_compute_efficiency(efficiency);
    return predicted_value(c, estimator.estimate(c.strategy)) > *row.row.measured_value;
  };
  if (above(low) != falls || above(high) == falls) return std::nullopt;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    (above(middle) == falls ? low : high) = middle;
  }
  return low;
}

Errors errors_of(const std::vector<const PricedRow*>& rows) {
  std::vector<double> errors;
  for (const PricedRow* p : rows) errors.push_back(std::abs(p->step_error));
  Errors e{.count = std::ssize(errors)};
  if (errors.empty()) return e;
  std::ranges::sort(errors);
  const size_t n = errors.size();
  e.median = n % 2 == 1 ? errors[n / 2] : (errors[n / 2 - 1] + errors[n / 2]) / 2;
  for (const double error : errors) e.mean += error / static_cast<double>(n);
  e.worst = errors.back();
  return e;
}

bool states_every_field(const MeasuredRow& r) {
  return r.layers && r.hidden && r.heads && r.kv_heads && r.vocabulary && r.sequence &&
         r.global_batch && r.micro_batch && r.gpus && r.tp && r.pp && r.vpp && r.cp && r.dp &&
         !r.recompute.empty() && !r.precision.empty() && !r.zero.empty();
}

Summary summarise(const std::vector<PricedRow>& rows) {
  Summary s{.num_rows = std::ssize(rows)};
  std::vector<const PricedRow*> stated, assumed, moe, dense, memory, time;
  for (const PricedRow& p : rows) {
    s.num_priced += p.is_priced() ? 1 : 0;
    s.num_calibration += p.calibration_row ? 1 : 0;
    if (is_grade_a(p.row)) {
      ++s.num_grade_a;
      s.num_grade_a_priced += p.is_priced() ? 1 : 0;
    }
    if (p.row.is_fit_row() && p.is_priced()) {
      const bool ran = p.row.outcome == "ran";
      (ran ? s.fit.ran : s.fit.oom) += 1;
      if (ran && p.predicted_outcome == "ran") ++s.fit.ran_called_feasible;
      if (!ran && p.predicted_outcome == "oom") ++s.fit.oom_called_infeasible;
    }
    if (!counts(p) || !is_grade_a(p.row)) continue;
    if (p.is_memory) {
      memory.push_back(&p);
      continue;
    }
    time.push_back(&p);
    (states_every_field(p.row) ? stated : assumed).push_back(&p);
    (p.is_moe ? moe : dense).push_back(&p);
  }
  s.time_stated = errors_of(stated);
  s.time_assumed = errors_of(assumed);
  s.time_moe = errors_of(moe);
  s.time_dense = errors_of(dense);
  s.memory = errors_of(memory);
  s.memory_beyond_tenth = std::ranges::count_if(
      memory, [](const PricedRow* p) { return std::abs(p->step_error) > 0.1; });
  const auto group = [&](const char* name, auto key) {
    std::map<std::string, std::vector<const PricedRow*>> by;
    for (const PricedRow* p : time) by[key(*p)].push_back(p);
    for (const auto& [value, of] : by) s.groups[name].emplace_back(value, errors_of(of));
  };
  group("source", [](const PricedRow& p) { return p.row.source; });
  group("hardware", [](const PricedRow& p) { return p.device; });
  group("family", family_of);
  group("precision", [](const PricedRow& p) { return p.precision; });
  group("trainer", [](const PricedRow& p) { return p.trainer + ", " + p.device; });
  s.leave_one_out = leave_one_source_out(time);
  return s;
}

// Without a constant of its own a source has the median of what the other sources' rows of the same
// trainer ask for, or, where it is alone, of the same device, or of all.
std::vector<std::pair<std::string, Errors>> leave_one_source_out(
    const std::vector<const PricedRow*>& rows) {
  std::map<std::string, std::vector<const PricedRow*>> by;
  for (const PricedRow* p : rows) by[p->row.source].push_back(p);
  std::vector<std::pair<std::string, Errors>> out;
  for (const auto& [source, of] : by) {
    std::vector<PricedRow> again;
    for (const PricedRow* p : of) again.push_back(reprice_without(*p, source));
    std::vector<const PricedRow*> pointers;
    for (const PricedRow& p : again) pointers.push_back(&p);
    out.emplace_back(source, errors_of(pointers));
  }
  return out;
}

PricedRow reprice_without(const PricedRow& p, const std::string& source) {
  const Case c = interpret(p.row, p.asked_trainer);
  std::vector<double> others, of_device, of_all;
  for (const std::string& name : cost::builtin_trainers()) {
    const cost::TrainerProfile s = cost::load_trainer(name);
    for (const auto& [device, calibration] : s.calibrations) {
      const bool own = std::ranges::any_of(calibration.rows, [&](const cost::CalibrationRow& r) {
        return source.find(r.source) != std::string::npos;
      });
      if (own) continue;
      of_all.push_back(calibration.compute_efficiency);
      if (device == c.cluster.device) of_device.push_back(calibration.compute_efficiency);
      if (name == c.trainer.name) others.push_back(calibration.compute_efficiency);
    }
  }
  for (std::vector<double>* list : {&others, &of_device, &of_all}) {
    if (list->empty()) continue;
    std::ranges::sort(*list);
    cost::TrainerEstimator estimator(c.model, c.cluster, c.trainer, c.strategy.precision,
                                     c.strategy.sequence);
    estimator.set_compute_efficiency((*list)[list->size() / 2]);
    PricedRow again = p;
    again.predicted_value = predicted_value(c, estimator.estimate(c.strategy));
    set_errors(again, c.quantity, *p.row.measured_value);
    return again;
  }
  return p;
}

}  // namespace piper::validate
