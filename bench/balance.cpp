// piper bench balance: the searches of balance/ side by side, on loads that drift, stay or are
// traces of a real run.
//
// Every search is simulated as a run would use it: a window of steps is summed, the search places
// the experts of every layer for it, and that placement then meets the *next* window. Placements
// are carried on, so a search pays for moving back and forth.
#include <bench/benches.h>
#include <fmt/format.h>
#include <piper/balance/copies.h>
#include <piper/balance/exhaustive.h>
#include <piper/balance/hill_climb.h>
#include <piper/balance/load_window.h>
#include <piper/balance/longest_first.h>
#include <piper/balance/pair_search.h>
#include <piper/balance/placement_pool.h>
#include <piper/balance/replicate.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cost/load_distribution.h>
#include <piper/report/table.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

using balance::ExpertPlacement;
using balance::Loads;
using balance::Rebalanced;
using report::Align;

constexpr int64_t kExhaustiveExperts = 12, kExhaustiveRanks = 4;
constexpr double kRowsAStep = 1 << 20;  // of a layer: shares become counts
// A parameter that moves takes along its fp32 master and both moments (the weight is rounded
// again).
constexpr int64_t kStateBytes = 12;

struct BalanceFlags {
  std::vector<std::string> loads;
  int64_t experts = 0, ranks = 0, layers = 4, window = 50, steps = 500;
  int64_t hidden = 4096, ffn = 1536;
  uint64_t seed = 0;
  bool json = false;
};

struct LoadCase {
  std::string load;
  int64_t experts = 0, ranks = 0;
};

// The counts of every step and layer.
struct Simulated {
  LoadCase question;
  std::vector<balance::LayerLoads> windows;
  double overlap = 0;  // of a window with the next, mean
  double least = 0;    // balance::least_imbalance, mean over windows and layers
};

Simulated simulate(const LoadCase& c, const BalanceFlags& flags) {
  model::Layer layer;
  layer.feed_forward = {.ffn = flags.ffn, .num_experts = c.experts, .top_k = 1};
  model::Model model;
  model.name = "bench";
  model.hidden = flags.hidden;
  model.layers.assign(static_cast<size_t>(flags.layers), layer);
  const cost::LoadDistribution load = cost::parse_load(c.load);
  Simulated simulated{.question = c};
  balance::LoadWindow window(flags.window);
  for (int64_t step = 0; step < flags.steps; ++step) {
    const cost::ExpertLoad sample =
        cost::sample_load(load, model, c.ranks, flags.seed, step, flags.steps);
    balance::LayerLoads counts;
    for (int64_t l = 0; l < flags.layers; ++l)
      for (int64_t e = 0; e < c.experts; ++e) {
        const std::vector<double>& share = sample.share[static_cast<size_t>(l)];
        const double part =
            share.empty() ? 1.0 / static_cast<double>(c.experts) : share[static_cast<size_t>(e)];
        counts[static_cast<int32_t>(l)].push_back(std::llround(part * kRowsAStep));
      }
    window.add(counts);
    if ((step + 1) % flags.window == 0) simulated.windows.push_back(window.sums());
  }
  double num = 0;
  for (size_t w = 0; w + 1 < simulated.windows.size(); ++w)
    for (const auto& [l, loads] : simulated.windows[w]) {
      simulated.overlap += balance::overlap(loads, simulated.windows[w + 1].at(l));
      simulated.least += balance::least_imbalance(loads, c.ranks);
      ++num;
    }
  simulated.overlap /= num;
  simulated.least /= num;
  return simulated;
}

// A search, and what it keeps from decision to decision, for every layer.
using Search =
    std::function<Rebalanced(int32_t layer, const ExpertPlacement& now, const Loads& loads)>;

struct SearchRow {
  std::string search;
  double imbalance = 0, worst = 0;  // of its own window: mean and largest over layers and windows
  double next = 0;                  // of the next one
  double swaps = 0, migrated = 0;   // a decision of one layer
  double microseconds = 0;          // median, of one decision of one layer
  std::optional<double>
      optimum;  // busiest rank's load over the least possible, where that is known
};

// Experts that a rank holds and has not held before.
int64_t num_new(const ExpertPlacement& before, const ExpertPlacement& after) {
  int64_t num = 0;
  for (int64_t rank = 0; rank < after.num_ranks(); ++rank)
    num += std::ranges::count_if(after.held(rank), [&](int32_t expert) {
      return std::ranges::find(before.held(rank), expert) == before.held(rank).end();
    });
  return num;
}

SearchRow measure(const std::string& name, const Search& search, const Simulated& simulated) {
  SearchRow row{.search = name};
  const LoadCase& c = simulated.question;
  const bool is_small = c.experts <= kExhaustiveExperts && c.ranks <= kExhaustiveRanks;
  std::map<int32_t, ExpertPlacement> placements;
  std::vector<double> microseconds;
  double num = 0, optimum = 0;
  for (size_t w = 0; w + 1 < simulated.windows.size(); ++w)
    for (const auto& [layer, loads] : simulated.windows[w]) {
      ExpertPlacement& now =
          placements.try_emplace(layer, ExpertPlacement::plain(c.experts, c.ranks)).first->second;
      const auto start = std::chrono::steady_clock::now();
      Rebalanced result = search(layer, now, loads);
      microseconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6);
      const double left = balance::imbalance(result.placement, loads);
      row.imbalance += left;
      row.worst = std::max(row.worst, left);
      row.next += balance::imbalance(result.placement, simulated.windows[w + 1].at(layer));
      row.swaps += static_cast<double>(result.num_swaps);
      row.migrated += static_cast<double>(num_new(now, result.placement));
      if (is_small)
        optimum +=
            static_cast<double>(std::ranges::max(balance::rank_loads(result.placement, loads))) /
            static_cast<double>(balance::least_busiest(loads, static_cast<size_t>(c.ranks)));
      now = std::move(result.placement);
      ++num;
    }
  for (double* value : {&row.imbalance, &row.next, &row.swaps, &row.migrated}) *value /= num;
  if (is_small) row.optimum = optimum / num;
  std::ranges::nth_element(microseconds, microseconds.begin() + std::ssize(microseconds) / 2);
  row.microseconds = microseconds[microseconds.size() / 2];
  return row;
}

std::vector<SearchRow> measure(const Simulated& simulated) {
  std::map<int32_t, balance::PlacementPool> pools;
  const auto pool = [&](int32_t layer, const ExpertPlacement& now, const Loads& loads) {
    balance::PlacementPool& of = pools.try_emplace(layer, balance::PlacementPool(8)).first->second;
    Rebalanced chosen = of.choose(now, loads);  // from earlier windows; then this one is planned
    of.plan(chosen.placement, loads);
    return chosen;
  };
  const auto pairs = [](balance::SearchLimits limits) {
    return [limits](int32_t, const ExpertPlacement& now, const Loads& loads) {
      return balance::pair_search(now, loads, limits);
    };
  };
  const LoadCase& c = simulated.question;
  const int64_t each = c.experts / c.ranks;
  const auto redundant = [&](int64_t more) {
    return [slots = balance::RedundantSlots{.num_ranks = c.ranks,
                                            .slots_per_rank = std::min(each + more, c.experts)}](
               int32_t, const ExpertPlacement&, const Loads& loads) {
      return Rebalanced{balance::replicate(loads, slots), 0};
    };
  };
  const auto with_homes = [&](const auto& share, int64_t slots) {
    return [share, slots = std::min(slots, c.experts - each)](int32_t, const ExpertPlacement& now,
                                                              const Loads& loads) {
      return Rebalanced{share(now, loads, slots), 0};
    };
  };
  return {measure(
              "none",
              [](int32_t, const auto& now, const Loads&) {
                return Rebalanced{now, 0};
              },
              simulated),
          measure(
              "Algorithm 2",
              [](int32_t, const auto& now, const Loads& loads) {
                return balance::hill_climb(now, loads);
              },
              simulated),
          measure("pair search", pairs({}), simulated),
          measure("... to 1.1", pairs({.threshold = 1.1}), simulated),
          measure("... to 1.3", pairs({.threshold = 1.3}), simulated),
          measure("... moves too", pairs({.max_experts_per_rank = 2 * each}), simulated),
          measure("... node-aware",
                  pairs({.ranks_per_node = c.ranks >= 16 ? 8 : std::max<int64_t>(1, c.ranks / 2)}),
                  simulated),
          measure(
              "longest first",
              [](int32_t, const auto& now, const Loads& loads) {
                return balance::longest_first(now, loads);
              },
              simulated),
          measure("pool", pool, simulated),
          measure("a slot more a rank", redundant(1), simulated),
          measure("... two", redundant(2), simulated),
          measure("homes stay, a slot, greedy", with_homes(balance::share_hot, 1), simulated),
          measure("homes stay, a slot (a run's)", with_homes(balance::share_evenly, 1), simulated),
          measure("... two", with_homes(balance::share_evenly, 2), simulated)};
}

std::vector<LoadCase> cases_of(const BalanceFlags& flags) {
  std::vector<LoadCase> cases;
  const auto add = [&](const std::string& load, int64_t experts, int64_t ranks) {
    if (experts % ranks != 0)
      throw InvalidInput(
          fmt::format("--ranks is {}; allowed: a divisor of the {} experts", ranks, experts));
    cases.push_back({load, experts, ranks});
  };
  const bool is_given = flags.experts > 0 || flags.ranks > 0;
  for (const std::string& load : flags.loads) {
    if (is_given) {
      add(load, flags.experts > 0 ? flags.experts : 32, flags.ranks > 0 ? flags.ranks : 8);
      continue;
    }
    add(load, 12, 4);
    add(load, 32, 8);
    add(load, 256, 64);
  }
  return cases;
}

Json to_json(const SearchRow& row, double expert_bytes) {
  Json json{{"search", row.search},
            {"imbalance", row.imbalance},
            {"worst_imbalance", row.worst},
            {"next_imbalance", row.next},
            {"swaps", row.swaps},
            {"migrated_experts", row.migrated},
            {"migrated_bytes", row.migrated * expert_bytes},
            {"microseconds", row.microseconds}};
  if (row.optimum) json["over_optimum"] = *row.optimum;
  return json;
}

int run_balance(const BalanceFlags& flags) {
  if (flags.steps < 2 * flags.window)
    throw InvalidInput(fmt::format("--steps is {}; allowed: at least two windows of {}",
                                   flags.steps, flags.window));
  const double expert_bytes = static_cast<double>(3 * flags.hidden * flags.ffn * kStateBytes);
  Json results = Json::array();
  for (const LoadCase& c : cases_of(flags)) {
    const Simulated simulated = simulate(c, flags);
    const std::vector<SearchRow> rows = measure(simulated);
    Json searches = Json::array();
    report::Table table;
    table.columns = {{"search"},
                     {"imbalance left", Align::kRight},
                     {"worst", Align::kRight},
                     {"next window", Align::kRight},
                     {"/ optimum", Align::kRight},
                     {"swaps", Align::kRight},
                     {"experts moved", Align::kRight},
                     {"bytes", Align::kRight},
                     {"us to decide", Align::kRight}};
    for (const SearchRow& row : rows) {
      searches.push_back(to_json(row, expert_bytes));
      table.rows.push_back(
          {row.search, fmt::format("{:.3f}", row.imbalance), fmt::format("{:.3f}", row.worst),
           fmt::format("{:.3f}", row.next), row.optimum ? fmt::format("{:.4f}", *row.optimum) : "-",
           fmt::format("{:.1f}", row.swaps), fmt::format("{:.1f}", row.migrated),
           format_bytes(row.migrated * expert_bytes), fmt::format("{:.1f}", row.microseconds)});
    }
    results.push_back({{"load", c.load},
                       {"num_experts", c.experts},
                       {"ranks", c.ranks},
                       {"window_steps", flags.window},
                       {"windows", simulated.windows.size()},
                       {"layers", flags.layers},
                       {"overlap_with_next", simulated.overlap},
                       {"least_imbalance", simulated.least},
                       {"searches", searches}});
    if (!flags.json)
      say("{}, {} experts on {} ranks: {} windows of {} steps, {} layers; a window puts {} of the "
          "rows where the next does; no placement is below {:.3f}\n{}\n",
          c.load, c.experts, c.ranks, simulated.windows.size(), flags.window, flags.layers,
          format_percent(simulated.overlap), simulated.least, Lines{report::to_text(table)});
  }
  if (flags.json) say_json(results);
  return 0;
}

}  // namespace

Run add_bench_balance(Subcommand command) {
  auto flags = std::make_shared<BalanceFlags>();
  flags->loads = {"zipf:1", "drift:1"};
  command
      .add_option("--load", flags->loads,
                  "loads of the experts, as in `piper plan --load`: zipf:S, hot-expert:F, drift:S, "
                  "trace:FILE")
      .show_default();
  command.add_option("--experts", flags->experts, "of a layer (default: 12, 32 and 256)")
      .check(integer_in(1, 4096));
  command.add_option("--ranks", flags->ranks, "of the expert group (default: 4, 8 and 64)")
      .check(integer_in(1, 4096));
  command.add_option("--layers", flags->layers, "of the model").check(integer_in(1, 1024));
  command
      .add_option("--window", flags->window, "steps between two decisions, which a decision sums")
      .check(integer_in(1, 100000))
      .show_default();
  command.add_option("--steps", flags->steps, "of the run")
      .check(integer_in(2, 1000000))
      .show_default();
  command.add_option("--seed", flags->seed, "of the drawn loads");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_balance(*flags); };
}

}  // namespace piper::cli
