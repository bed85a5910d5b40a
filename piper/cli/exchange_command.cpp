// piper exchange: which all-to-all suits a machine, a number of nodes and a size, by price.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/byte_count.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cluster/cluster.h>
#include <piper/comm/exchange_limit.h>
#include <piper/plan/exchange_choice.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <piper/sim/placement.h>

#include <memory>

namespace piper::cli {
namespace {

using report::Align;

constexpr int64_t kMostMembers = 1024;  // simulated one by one: seconds for each configuration

struct ExchangeFlags {
  std::string cluster;
  int64_t nodes = 4, members_per_node = 0;
  std::vector<std::string> bytes = {"64", "4K", "64K", "1M"};
  double hot = 1;
  bool json = false;
};

struct Sized {
  int64_t bytes = 0;
  plan::ExchangeChoice choice;
  double flat_seconds = 0;
  double limit_seconds = 0;  // of any exchange: comm/exchange_limit.h
};

constexpr int64_t kMostBytes = int64_t{1} << 30;
// Nearer than that two algorithms are one: often the same messages in nearly the same order.
constexpr double kSame = 0.005;

std::string configuration(const plan::PricedExchange& p) {
  return p.chunk_bytes == 0 ? strategy::name(p.algorithm)
                            : fmt::format("{}, pieces of {}", strategy::name(p.algorithm),
                                          format_bytes(static_cast<double>(p.chunk_bytes)));
}

Sized sized(const cluster::Cluster& machine, const sim::Fabric& fabric,
            const collective::Topology& topology, int64_t bytes, double hot) {
  const auto count = [=](int64_t, int64_t to) {
    return to == 0 ? static_cast<int64_t>(hot * static_cast<double>(bytes)) : bytes;
  };
  Sized result{.bytes = bytes, .choice = plan::choose_exchange(fabric, topology, count)};
  result.flat_seconds = plan::exchange_seconds(fabric, topology, count, strategy::AllToAll::kFlat);
  result.limit_seconds = comm::exchange_limit(topology, count, collective::num_members(topology),
                                              comm::link_rates(machine, topology));
  return result;
}

Json to_json(const Sized& sized) {
  Json priced = Json::array();
  for (const plan::PricedExchange& p : sized.choice.priced)
    priced.push_back({{"algorithm", strategy::name(p.algorithm)},
                      {"chunk_bytes", p.chunk_bytes},
                      {"seconds", p.seconds}});
  return {{"bytes_per_pair", sized.bytes},
          {"limit_seconds", sized.limit_seconds},
          {"straight_limit_seconds", sized.choice.straight_limit_seconds},
          {"flat_seconds", sized.flat_seconds},
          {"priced", priced}};
}

std::string to_text(const std::vector<Sized>& all) {
  report::Table table;
  table.columns = {{"a pair", Align::kRight},  {"choice"},
                   {"time", Align::kRight},    {"flat / choice", Align::kRight},
                   {"/ limit", Align::kRight}, {"next other algorithm"},
                   {"behind", Align::kRight}};
  for (const Sized& s : all) {
    const plan::PricedExchange& best = s.choice.best();
    const auto next = std::ranges::find_if(s.choice.priced, [&](const plan::PricedExchange& p) {
      return p.algorithm != best.algorithm && p.seconds > (1 + kSame) * best.seconds;
    });
    const bool is_there = next != s.choice.priced.end();
    table.rows.push_back(
        {format_bytes(static_cast<double>(s.bytes)), configuration(best),
         format_seconds(best.seconds), fmt::format("{:.2f}", s.flat_seconds / best.seconds),
         s.limit_seconds > 0 ? fmt::format("{:.2f}", best.seconds / s.limit_seconds) : "-",
         is_there ? configuration(*next) : "-",
         is_there ? fmt::format("{:.1f} %", 100 * (next->seconds / best.seconds - 1)) : "-"});
  }
  return report::to_text(table);
}

int run_exchange(const ExchangeFlags& flags) {
  std::vector<std::string> problems;
  std::vector<int64_t> sizes;
  for (const std::string& text : flags.bytes)
    sizes.push_back(read_bytes("--bytes", text, 1, kMostBytes, &problems));
  if (!problems.empty()) throw InvalidInput(problems);
  const cluster::Cluster machine = cluster::load_cluster(flags.cluster);
  const sim::Placement placement = sim::packed(machine, flags.nodes, flags.members_per_node);
  const auto members = std::ssize(placement.device);
  if (members < 2 || members > kMostMembers)
    throw InvalidInput(fmt::format(
        "--nodes {} are {} ranks; allowed: 2 to {} ranks, which are simulated one by one",
        flags.nodes, members, kMostMembers));
  const sim::Fabric fabric = sim::fabric_of(machine, placement);
  const collective::Topology topology = sim::topology_of(machine, placement);
  report::Progress bar({.label = "exchange", .total = std::ssize(sizes), .unit = "sizes"});
  std::vector<Sized> all;
  for (const int64_t bytes : sizes) {
    all.push_back(sized(machine, fabric, topology, bytes, flags.hot));
    bar.set(std::ssize(all));
  }
  bar.finish();
  if (flags.json) {
    Json priced = Json::array();
    for (const Sized& s : all) priced.push_back(to_json(s));
    say_json(Json{
        {"cluster", machine.name}, {"nodes", flags.nodes}, {"ranks", members}, {"sizes", priced}});
    return 0;
  }
  say("all-to-all of {} ranks on {} node{} of {}, packed{}: priced by simulating every "
      "configuration's "
      "steps\n{}\n`piper train --all-to-all NAME --all-to-all-chunk BYTES` moves rows so.\n",
      members, flags.nodes, flags.nodes == 1 ? "" : "s", machine.name,
      flags.hot == 1 ? "" : fmt::format(", rank 0 gets {:g} times as much", flags.hot),
      Lines{to_text(all)});
  return 0;
}

}  // namespace

Run add_exchange(Subcommand command) {
  auto flags = std::make_shared<ExchangeFlags>();
  command.add_option("--cluster", flags->cluster, "built-in name or file").required();
  command.add_option("--nodes", flags->nodes, "nodes of the machine, packed")
      .check(integer_in(1, int64_t{1} << 20))
      .show_default();
  command.add_option("--ranks-per-node", flags->members_per_node, "(all devices of a node)")
      .check(integer_in(1, int64_t{1} << 10));
  command.add_option("--bytes", flags->bytes, "from each rank to each other, e.g. 64,4K,1M")
      .delimiter(',')
      .show_default();
  command.add_option("--hot", flags->hot, "rank 0 gets so many times as much as others")
      .check(number_in(1.0, 1000.0))
      .show_default();
  command.add_flag("--json", flags->json, "print all configurations as JSON");
  return [flags] { return run_exchange(*flags); };
}

}  // namespace piper::cli
