// piper bench dedup: tokens on their way to k experts each, as rows for every expert by the
// exchanges of `bench alltoall`, and once for every node (collective/halo_dedup.h), side by side on
// the same choices.
#include <bench/alltoall_algorithms.h>
#include <bench/alltoall_load.h>
#include <bench/alltoall_prediction.h>
#include <bench/benches.h>
#include <bench/ranks.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/byte_count.h>
#include <piper/cli/console.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/comm/exchange_limit.h>
#include <piper/comm/place.h>
#include <piper/cost/load_distribution.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

namespace piper::cli {
namespace {

using collective::TokenRoutes;

struct DedupFlags {
  BenchRanksFlags ranks;
  std::string tokens = "128", row_bytes = "1K", experts = "64", top_k = "8", pieces = "4",
              load = "uniform", cluster;
  std::vector<std::string> algorithms{"node-aware", "halo:64K"};
  bool json = false;
};

struct DedupQuestion {
  BenchRanks ranks;
  int64_t num_ranks = 0, tokens = 0, row_bytes = 0, experts = 0, top_k = 0, pieces = 0;
  cost::LoadDistribution load;
  std::optional<cluster::Cluster> cluster;
};

DedupQuestion read_flags(const DedupFlags& f) {
  std::vector<std::string> problems;
  DedupQuestion q;
  q.ranks = read_bench_ranks(f.ranks, &problems);
  q.num_ranks = q.ranks.num_ranks;
  q.tokens = read_bytes("--tokens", f.tokens, 1, 1 << 20, &problems);
  q.row_bytes = read_bytes("--row-bytes", f.row_bytes, 8, 1 << 20, &problems);
  q.experts = read_bytes("--experts", f.experts, 1, 4096, &problems);
  q.top_k = read_bytes("--top-k", f.top_k, 1, 64, &problems);
  q.pieces = read_bytes("--pieces", f.pieces, 1, 1024, &problems);
  if (problems.empty()) {
    if (q.row_bytes % 8 != 0)
      problems.push_back(fmt::format("--row-bytes is {}; allowed: a multiple of 8", q.row_bytes));
    if (q.experts % q.num_ranks != 0)
      problems.push_back(fmt::format("--experts is {}; allowed: a multiple of the {} ranks",
                                     q.experts, q.num_ranks));
    if (q.top_k > q.experts)
      problems.push_back(fmt::format("--top-k is {}; allowed: at most --experts, which is {}",
                                     q.top_k, q.experts));
  }
  if (!problems.empty()) throw InvalidInput(problems);
  q.load = cost::parse_load(f.load);
  if (!f.cluster.empty()) q.cluster = cluster::load_cluster(f.cluster);
  return q;
}

// How often each expert is chosen, in proportion. Throws InvalidInput.
std::vector<double> popularity(const DedupQuestion& q) {
  std::vector<double> shares(static_cast<size_t>(q.experts), 1);
  if (q.load.kind == cost::LoadKind::kZipf) {
    const std::vector<int64_t> order = fixed_order(q.experts);
    for (size_t i = 0; i < order.size(); ++i)
      shares[static_cast<size_t>(order[i])] =
          std::pow(static_cast<double>(i + 1), -q.load.parameter);
  } else if (q.load.kind == cost::LoadKind::kTrace) {
    shares = middle_of_trace(q.load);
    if (std::ssize(shares) != q.experts)
      throw InvalidInput(
          fmt::format("--load {}: {} experts; allowed: as many as --experts, which is {}",
                      q.load.text, shares.size(), q.experts));
    if (std::ranges::count_if(shares, [](double s) { return s > 0; }) < q.top_k)
      throw InvalidInput(
          fmt::format("--load {}: fewer than {} experts were chosen at all", q.load.text, q.top_k));
  } else if (q.load.kind != cost::LoadKind::kUniform) {
    throw InvalidInput(
        fmt::format("--load is '{}'; allowed: uniform, zipf:S or trace:FILE", q.load.text));
  }
  return shares;
}

// What routers would choose: k different experts a token, by popularity. The same in all processes.
class Choices {
 public:
  Choices(const DedupQuestion& q, const collective::Topology& topology)
      : copies_(static_cast<size_t>(q.num_ranks * q.num_ranks)) {
    const std::vector<double> shares = popularity(q);
    const std::vector<int32_t>& node = topology.unit.front();
    std::mt19937_64 random(7);
    for (int64_t rank = 0; rank < q.num_ranks; ++rank) {
      TokenRoutes& routes = routes_.emplace_back();
      for (int64_t t = 0; t < q.tokens; ++t) {
        std::vector<double> left = shares;
        std::set<int32_t> targets, nodes;
        for (int64_t k = 0; k < q.top_k; ++k) {
          std::discrete_distribution<int64_t> draw(left.begin(), left.end());
          const int64_t expert = draw(random);
          left[static_cast<size_t>(expert)] = 0;
          const auto target = static_cast<int32_t>(expert / (q.experts / q.num_ranks));
          ++copies_[static_cast<size_t>(rank * q.num_ranks + target)];
          targets.insert(target);
          nodes.insert(node[static_cast<size_t>(target)]);
          if (node[static_cast<size_t>(target)] != node[static_cast<size_t>(rank)])
            ++copies_across_;
        }
        distinct_nodes_ += static_cast<int64_t>(nodes.size());
        nodes.erase(node[static_cast<size_t>(rank)]);
        distinct_across_ += static_cast<int64_t>(nodes.size());
        routes.add(std::vector<int32_t>(targets.begin(), targets.end()));
      }
    }
  }

  const TokenRoutes& routes(int64_t rank) const { return routes_[static_cast<size_t>(rank)]; }
  int64_t copies(int64_t from, int64_t to) const {
    return copies_[static_cast<size_t>(from * std::ssize(routes_) + to)];
  }
  int64_t distinct_nodes() const { return distinct_nodes_; }
  int64_t copies_across() const { return copies_across_; }
  int64_t distinct_across() const { return distinct_across_; }

 private:
  std::vector<TokenRoutes> routes_;
  std::vector<int64_t> copies_;
  int64_t distinct_nodes_ = 0, copies_across_ = 0, distinct_across_ = 0;
};

// The i-th number of a token's row.
int64_t number_of(int64_t rank, int64_t token, int64_t i) {
  return (rank << 40) + (token << 16) + i;
}

// Dispatch and combine of the same choices, with what they must bring.
class Deduplicated {
 public:
  // `unit_bytes`: of the steps; 8 to be simulated on numbers, 1 to be priced.
  Deduplicated(const DedupQuestion& q, const Choices& choices, const collective::Topology& topology,
               int64_t unit_bytes)
      : q_(q),
        choices_(choices),
        topology_(topology),
        units_(topology, 0),
        unit_bytes_(unit_bytes) {}

  std::vector<comm::Exchange> both() const {
    const comm::Unit unit{.bytes = unit_bytes_, .element = comm::Element::kInt64};
    return {{.name = "halo-dedup dispatch",
             .steps = [this](int64_t m) { return dispatch(m); },
             .data = [this](int64_t m) { return dispatch_data(m); },
             .unit = unit},
            {.name = "halo-dedup combine",
             .steps = [this](int64_t m) { return combine(m); },
             .data = [this](int64_t m) { return combine_data(m); },
             .unit = unit}};
  }

 private:
  int64_t row() const { return q_.row_bytes / 8; }
  collective::Dedup dedup() const {
    return {.row_count = q_.row_bytes / unit_bytes_, .num_pieces = q_.pieces};
  }
  collective::DedupKnown known(int64_t me) const {
    return {.own = choices_.routes(me),
            .into_unit =
                [this, me](int64_t from) {
                  return routes_told(choices_.routes(from), from, me, units_);
                },
            .rows =
                [this, me](int64_t from) {
                  return counts_told(choices_.routes(from), from, me, units_, q_.pieces);
                }};
  }
  collective::MemberSteps dispatch(int64_t m) const {
    return halo_dedup_dispatch(m, topology_, known(m), dedup());
  }
  collective::MemberSteps combine(int64_t m) const {
    return halo_dedup_combine(m, topology_, known(m), dedup());
  }

  static void add_row(std::vector<std::byte>& to, int64_t rank, int64_t token, int64_t count,
                      int64_t times) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = times * number_of(rank, token, i);
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      to.insert(to.end(), bytes, bytes + sizeof(value));
    }
  }
  std::vector<std::byte> tokens(int64_t m, bool summed) const {
    std::vector<std::byte> rows;
    for (int64_t t = 0; t < q_.tokens; ++t)
      add_row(rows, m, t, row(),
              summed ? static_cast<int64_t>(choices_.routes(m).of(t).size()) : 1);
    return rows;
  }
  std::vector<std::byte> arrived(int64_t m) const {
    std::vector<std::byte> rows;
    for (int64_t from = 0; from < q_.num_ranks; ++from)
      for (int64_t t = 0; t < q_.tokens; ++t)
        if (std::ranges::binary_search(choices_.routes(from).of(t), static_cast<int32_t>(m)))
          add_row(rows, from, t, row(), 1);
    return rows;
  }
  comm::Exchange::Data dispatch_data(int64_t m) const { return {tokens(m, false), arrived(m)}; }
  // Every member's experts hand back what came: the sum is the token times its members.
  comm::Exchange::Data combine_data(int64_t m) const { return {arrived(m), tokens(m, true)}; }

  const DedupQuestion& q_;
  const Choices& choices_;
  const collective::Topology& topology_;
  collective::Units units_;
  int64_t unit_bytes_;
};

struct Line {
  std::string name;
  comm::ExchangeResult measured;
  std::optional<double> predicted;
};

struct Outcome {
  std::vector<Line> lines;
  double copies = 0, distinct_nodes = 0;  // of a token
  double fewer_rows = 0;                  // between nodes: copies over distinct
  int64_t num_nodes = 1, num_wrong = 0;
};

Outcome measure(const DedupQuestion& q, const DedupFlags& flags, comm::World& world,
                const std::function<void(double)>& progress) {
  const collective::Topology topology = comm::gather_topology(world, comm::place_from());
  const Choices choices(q, topology);
  const collective::CountOf count = [&](int64_t from, int64_t to) {
    return choices.copies(from, to) * q.row_bytes;
  };
  std::vector<comm::Exchange> exchanges;
  for (const std::string& name : flags.algorithms)
    exchanges.push_back(all_to_all(name, topology, count));
  const Deduplicated deduplicated(q, choices, topology, 8), priced(q, choices, topology, 1);
  for (comm::Exchange& one : deduplicated.both()) exchanges.push_back(std::move(one));
  const auto results = comm::measure_exchanges(world, exchanges, count,
                                               {.budget_seconds = q.ranks.budget_seconds,
                                                .min_rounds = q.ranks.min_rounds,
                                                .max_rounds = q.ranks.max_rounds,
                                                .min_repeats = q.ranks.min_repeats,
                                                .one_clock = share_a_clock(world),
                                                .progress = progress});
  const auto n = static_cast<double>(q.num_ranks * q.tokens);
  Outcome outcome{.copies = static_cast<double>(q.top_k),
                  .distinct_nodes = static_cast<double>(choices.distinct_nodes()) / n,
                  .fewer_rows = choices.distinct_across() > 0
                                    ? static_cast<double>(choices.copies_across()) /
                                          static_cast<double>(choices.distinct_across())
                                    : 1,
                  .num_nodes = *std::ranges::max_element(topology.unit.front()) + 1};
  for (size_t e = 0; e < exchanges.size(); ++e) {
    outcome.lines.push_back({.name = exchanges[e].name, .measured = results[e], .predicted = {}});
    outcome.num_wrong += results[e].num_wrong;
    if (q.cluster && world.process() == 0)
      outcome.lines.back().predicted = predicted_seconds(
          e < flags.algorithms.size() ? exchanges[e] : priced.both()[e - flags.algorithms.size()],
          topology, q.num_ranks, *q.cluster);
  }
  return outcome;
}

double fastest_plain(const Outcome& o, bool predicted) {
  double least = 0;
  for (size_t i = 0; i + 2 < o.lines.size(); ++i) {
    const double seconds =
        predicted ? o.lines[i].predicted.value_or(0) : o.lines[i].measured.seconds;
    least = least == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

void print(const DedupQuestion& q, const Outcome& o) {
  using report::Align;
  say("{} rank{} on {} node{}, {} tokens a rank of {}, {} of {} experts each, {}\n", q.num_ranks,
      q.num_ranks == 1 ? "" : "s", o.num_nodes, o.num_nodes == 1 ? "" : "s", q.tokens,
      format_bytes(static_cast<double>(q.row_bytes)), q.top_k, q.experts, q.load.text);
  say("distinct nodes of a token {:.2f}: k / distinct {:.2f}; rows between nodes, for every expert "
      "over for "
      "every node: {:.2f}\n",
      o.distinct_nodes, o.copies / o.distinct_nodes, o.fewer_rows);
  const double plain = fastest_plain(o, false), predicted = fastest_plain(o, true);
  report::Table table;
  table.columns = {{"exchange"},
                   {"seconds", Align::kRight},
                   {"predicted", Align::kRight},
                   {"times as fast as the best of rows for every expert", Align::kRight},
                   {"predicted", Align::kRight},
                   {"#wrong", Align::kRight}};
  for (const Line& line : o.lines)
    table.rows.push_back({line.name, format_seconds(line.measured.seconds),
                          line.predicted ? format_seconds(*line.predicted) : "-",
                          fmt::format("{:.2f}", plain / line.measured.seconds),
                          line.predicted ? fmt::format("{:.2f}", predicted / *line.predicted) : "-",
                          std::to_string(line.measured.num_wrong)});
  say("{}", Lines{report::to_text(table)});
}

Json to_json(const DedupQuestion& q, const Outcome& o) {
  Json json{{"ranks", q.num_ranks},
            {"nodes", o.num_nodes},
            {"tokens", q.tokens},
            {"row_bytes", q.row_bytes},
            {"experts", q.experts},
            {"top_k", q.top_k},
            {"load", q.load.text},
            {"distinct_nodes", o.distinct_nodes},
            {"k_over_distinct_nodes", o.copies / o.distinct_nodes},
            {"rows_between_nodes_ratio", o.fewer_rows}};
  json["exchanges"] = Json::array();
  for (const Line& line : o.lines) {
    Json one{{"name", line.name},
             {"seconds", line.measured.seconds},
             {"times_as_fast", fastest_plain(o, false) / line.measured.seconds},
             {"wrong", line.measured.num_wrong}};
    if (line.predicted) one["predicted_seconds"] = *line.predicted;
    json["exchanges"].push_back(one);
  }
  return json;
}

int run_dedup(const DedupFlags& flags) {
  const DedupQuestion q = read_flags(flags);
  (void)popularity(q);
  const std::unique_ptr<comm::World> world = q.ranks.world();
  std::unique_ptr<report::Progress> progress;
  if (world->process() == 0)
    progress.reset(new report::Progress({.label = "dedup", .total = 100, .unit = "%"}));
  const Outcome outcome = measure(q, flags, *world, [&](double part) {
    if (progress) progress->set(static_cast<int64_t>(100 * part));
  });
  if (world->process() == 0) {
    progress->finish();
    if (flags.json)
      say_json(to_json(q, outcome));
    else
      print(q, outcome);
  }
  return outcome.num_wrong == 0 ? 0 : 1;
}

}  // namespace

Run add_bench_dedup(Subcommand command) {
  const auto flags = std::make_shared<DedupFlags>();
  const auto option = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what).show_default();
  };
  option("--ranks", flags->ranks.ranks,
         "ranks as threads; under a launcher its processes are the ranks");
  option("--tokens", flags->tokens, "of a rank");
  option("--row-bytes", flags->row_bytes, "of a token");
  option("--experts", flags->experts, "divided among the ranks in their order");
  option("--top-k", flags->top_k, "different experts of a token");
  option("--load", flags->load, "what is chosen how often: uniform, zipf:S or trace:FILE");
  option("--pieces", flags->pieces, "into which a member's tokens for a node are cut");
  option("--seconds", flags->ranks.seconds, "time budget of the whole run");
  option("--rounds", flags->ranks.rounds, "batches of every exchange at least, late or not");
  option("--repeats", flags->ranks.repeats, "exchanges of a batch at least, back to back");
  command
      .add_option("--algorithms", flags->algorithms, "opponents, for example node-aware,halo:64K")
      .delimiter(',')
      .show_default();
  command.add_option("--cluster", flags->cluster, "the machine whose rates the prediction takes");
  command.add_flag("--json", flags->json, "print JSON");
  return [flags] { return run_dedup(*flags); };
}

}  // namespace piper::cli
