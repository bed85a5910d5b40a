#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/report/table.h>

namespace piper::cli {

void add_load_flags(Subcommand command, LoadFlags& flags) {
  command
      .add_option("--load", flags.load,
                  "load of the experts: balanced, zipf:S, hot-expert:F, hot-rank:F, drift:S or "
                  "trace:FILE (what the strategy's file says, else zipf:0.1)")
      .type_name("LOAD");
  command.add_option("--samples", flags.num_samples, "steps drawn of what is random")
      .check(integer_in(1, int64_t{100'000}))
      .show_default();
  command.add_option("--seed", flags.seed, "of what is random")
      .check(not_negative())
      .show_default();
}

void add_rebalance_flags(Subcommand command, std::string& policy, int64_t& every,
                         const std::string& when, bool has_slots) {
  const std::string copies =
      "replicate or shadow (slots of --redundant-experts hold copies of those with most rows: "
      "where "
      "ranks become most even, or on every rank), ";
  command
      .add_option("--rebalance", policy,
                  when +
                      "when experts move to other ranks of their group: off, threshold:X (the "
                      "busiest rank has more than X times the mean), price (what is saved exceeds "
                      "what moving costs), " +
                      (has_slots ? copies : "") + "random:F (that part of them, for measuring)")
      .show_default();
  command
      .add_option("--rebalance-every", every,
                  "steps between two decisions, which look at the loads of so many steps")
      .check(integer_in(1, 1 << 20))
      .show_default();
}

balance::RebalancePolicy rebalance_of_samples(const std::string& policy, int64_t every,
                                              const LoadFlags& load) {
  balance::RebalancePolicy rebalance = balance::parse_rebalance(policy, "--rebalance");
  rebalance.every = every;
  if (rebalance.is_on() && load.load.empty())
    throw InvalidInput(fmt::format(
        "--rebalance is {}, but the load is balanced; allowed: with --load, or off", policy));
  if (rebalance.is_on() && load.num_samples <= every)
    throw InvalidInput(
        fmt::format("--samples is {}, and experts move after {} steps first; allowed: more than "
                    "--rebalance-every",
                    load.num_samples, every));
  return rebalance;
}

std::optional<cost::LoadDistribution> load_of(const LoadFlags& flags) {
  if (flags.load.empty()) return std::nullopt;
  return cost::parse_load(flags.load);
}

Json spread_json(const cost::MeanP95Worst& spread) {
  return {{"mean", spread.mean}, {"p95", spread.p95}, {"worst", spread.worst}};
}

Json to_json(const LoadFlags& flags, const SampledSteps& sampled) {
  Json json{{"load", flags.load.empty() ? "balanced" : flags.load},
            {"num_samples", sampled.seconds.size()},
            {"seed", flags.seed},
            {"step_seconds", spread_json(cost::spread_of(sampled.seconds))},
            {"peak_bytes", spread_json(cost::spread_of(sampled.peak_bytes))}};
  if (!sampled.load_note.empty()) json["load_note"] = sampled.load_note;
  return json;
}

std::string to_text(const std::string& what, const SampledSteps& sampled) {
  using report::Align;
  const cost::MeanP95Worst seconds = cost::spread_of(sampled.seconds);
  const cost::MeanP95Worst bytes = cost::spread_of(sampled.peak_bytes);
  report::Table table;
  table.columns = {
      {what}, {"mean", Align::kRight}, {"p95", Align::kRight}, {"worst", Align::kRight}};
  table.rows.push_back({"step", format_seconds(seconds.mean), format_seconds(seconds.p95),
                        format_seconds(seconds.worst)});
  table.rows.push_back({"peak memory of a device", format_bytes(bytes.mean),
                        format_bytes(bytes.p95), format_bytes(bytes.worst)});
  return report::to_text(table) + (sampled.load_note.empty() ? "" : sampled.load_note + "\n");
}

Json rebalancing_json(const balance::RebalancePolicy& policy, const cost::RebalancingGain& gain) {
  return {{"policy", balance::to_text(policy)},
          {"every", policy.every},
          {"pays", gain.pays},
          {"step_seconds", spread_json(gain.seconds)},
          {"step_seconds_without", spread_json(gain.seconds_without)},
          {"migrated_experts", gain.migrated_experts},
          {"migrated_bytes", gain.migrated_bytes},
          {"migration_seconds", gain.migration_seconds}};
}

std::string rebalancing_text(const balance::RebalancePolicy& policy,
                             const cost::RebalancingGain& gain, int64_t num_steps) {
  const double run = static_cast<double>(num_steps) * gain.seconds.mean;
  return fmt::format(
      "rebalancing by {} every {} steps {}: {} a step in the mean ({} without), {} at p95 ({}); {} "
      "experts move ({}) in {}, {} of the run",
      balance::to_text(policy), policy.every, gain.pays ? "pays" : "does not pay",
      format_seconds(gain.seconds.mean), format_seconds(gain.seconds_without.mean),
      format_seconds(gain.seconds.p95), format_seconds(gain.seconds_without.p95),
      gain.migrated_experts, format_bytes(static_cast<double>(gain.migrated_bytes)),
      format_seconds(gain.migration_seconds), format_percent(gain.migration_seconds / run));
}

}  // namespace piper::cli
