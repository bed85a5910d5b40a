// piper profile: measures this machine and writes a cluster file.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/validators.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <piper/runtime/profile.h>

#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Flags {
  std::string out;
  int64_t ranks = 4;
  int64_t cores = 0;
  double budget_seconds = 15;
  bool json = false;
};

Json link_json(const runtime::LinkProfile& link) {
  Json samples = Json::array();
  for (const cluster::Sample& sample : link.samples)
    samples.push_back({{"bytes", sample.bytes}, {"seconds", sample.seconds}});
  return {{"latency_seconds", link.fit.line.latency_seconds},
          {"bandwidth_bytes_per_second", link.fit.line.bytes_per_second},
          {"r_squared", link.fit.r_squared},
          {"median_residual", link.fit.median_residual},
          {"samples", samples}};
}

void print_profile(const runtime::Profile& profile) {
  using report::Align;
  const cluster::Cluster& host = profile.cluster;
  fmt::print("{}\n{}, {} a rank, profiled in {}\n\n", host.description, host.device,
             format_bytes(static_cast<double>(host.memory_bytes)), format_seconds(profile.seconds));
  for (const auto& [precision, compute] : host.compute) {
    report::Table table;
    table.columns = {{"rows"},
                     {"256 x 256", Align::kRight},
                     {"512 x 512", Align::kRight},
                     {"1024 x 2048", Align::kRight}};
    for (const double rows : {8.0, 32.0, 128.0, 512.0, 2048.0})
      table.rows.push_back({fmt::format("{:.0f}", rows),
                            format_flops_per_second(compute.gemm.at({rows, 256, 256})),
                            format_flops_per_second(compute.gemm.at({rows, 512, 512})),
                            format_flops_per_second(compute.gemm.at({rows, 1024, 2048}))});
    fmt::print("GEMM in {}, one rank while all are busy (best seen: {})\n{}\n", precision,
               format_flops_per_second(compute.peak_flops_per_second), report::to_text(table));
  }
  report::Table links;
  links.columns = {{"communication"},
                   {"alpha", Align::kRight},
                   {"1/beta", Align::kRight},
                   {"R^2", Align::kRight},
                   {"median residual", Align::kRight}};
  for (const auto& [name, link] : {std::pair{"point-to-point", &profile.point_to_point},
                                   {"all-to-all", &profile.all_to_all},
                                   {"all-reduce", &profile.all_reduce}})
    links.rows.push_back({name, format_seconds(link->fit.line.latency_seconds),
                          format_bytes_per_second(link->fit.line.bytes_per_second),
                          fmt::format("{:.3f}", link->fit.r_squared),
                          format_percent(link->fit.median_residual)});
  fmt::print("{}", report::to_text(links));
}

int run(const Flags& flags) {
  runtime::ProfileOptions options;
  options.num_ranks = flags.ranks;
  options.num_cores = flags.cores;
  options.budget_seconds = flags.budget_seconds;
  report::Progress bar({.label = "profile", .total = 100, .unit = "%"});
  options.progress = [&](const std::string& what, double part) {
    bar.set(static_cast<int64_t>(part * 100), what);
  };
  const runtime::Profile profile = runtime::profile_host(options);
  bar.set(100, "");
  bar.finish();
  if (!flags.out.empty()) write_json_file(flags.out, cluster::to_json(profile.cluster));
  if (flags.json) {
    Json json{{"cluster", cluster::to_json(profile.cluster)},
              {"point_to_point", link_json(profile.point_to_point)},
              {"all_to_all", link_json(profile.all_to_all)},
              {"all_reduce", link_json(profile.all_reduce)},
              {"profile_seconds", profile.seconds}};
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  print_profile(profile);
  if (!flags.out.empty()) fmt::print("\nwritten: {}\n", flags.out);
  return 0;
}

}  // namespace

Run add_profile(CLI::App& command) {
  auto flags = std::make_shared<Flags>();
  command.add_option("--out", flags->out, "cluster file to write")->check(writable_file());
  command.add_option("--ranks", flags->ranks, "ranks (threads) that share this machine")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      .add_option("--cores", flags->cores,
                  "cores that they share (default: all that this process may use)")
      ->check(CLI::Range(1, 4096));
  command.add_option("--budget-seconds", flags->budget_seconds, "time to spend")
      ->check(number_in(1.0, 3600.0))
      ->capture_default_str();
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
