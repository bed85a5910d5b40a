#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/cli/bench.h>
#include <piper/cli/bench_alltoall.h>
#include <piper/comm/bench.h>
#include <piper/comm/local.h>
#include <piper/report/progress.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

namespace piper::cli {
namespace {

constexpr int64_t kElementBytes = 4;

std::vector<int64_t> sizes(const AllToAllOptions& options) {
  const int64_t unit = kElementBytes * options.num_ranks;
  std::vector<int64_t> result;
  for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    const int64_t whole = std::max(bytes - bytes % unit, unit);
    if (result.empty() || whole != result.back()) result.push_back(whole);
  }
  return result;
}

int64_t total_wrong(const std::vector<AllToAllRow>& rows) {
  int64_t wrong = 0;
  for (const AllToAllRow& row : rows) wrong += row.num_wrong;
  return wrong;
}

double average_bus(const std::vector<AllToAllRow>& rows) {
  double sum = 0;
  for (const AllToAllRow& row : rows) sum += row.bus_bytes_per_second;
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

// "4096", "4K", "16M", "1G" (powers of 1024).
int64_t read_count(const std::string& flag, const std::string& text, int64_t min, int64_t max,
                   std::vector<std::string>* problems) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string suffix(rest, end);
  const size_t shift = suffix.size() == 1 ? std::string("KMG").find(suffix) : std::string::npos;
  const bool known = suffix.empty() || shift != std::string::npos;
  const int64_t scale = suffix.empty() ? 1 : int64_t{1} << (10 * (shift + 1) % 64);
  if (error == std::errc() && known && value >= 0 && value <= max / scale && value * scale >= min)
    return value * scale;
  problems->push_back(fmt::format("{} is '{}'; allowed: an integer from {} to {}{}", flag, text,
                                  min, max, max > 4096 ? ", K, M or G may follow" : ""));
  return min;
}

struct Flags {
  std::string ranks = "4", min_bytes = "1K", max_bytes = "16M", factor = "4", seconds = "10";
  bool json = false;
};

AllToAllOptions read_flags(const Flags& flags) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  std::vector<std::string> problems;
  AllToAllOptions options;
  options.num_ranks = read_count("--ranks", flags.ranks, 1, 64, &problems);
  options.min_bytes = read_count("--min-bytes", flags.min_bytes, 1, kMaxBytes, &problems);
  options.max_bytes = read_count("--max-bytes", flags.max_bytes, 1, kMaxBytes, &problems);
  options.factor = read_count("--factor", flags.factor, 2, kMaxBytes, &problems);
  options.budget_seconds =
      static_cast<double>(read_count("--seconds", flags.seconds, 1, 3600, &problems));
  if (problems.empty() && options.min_bytes > options.max_bytes)
    problems.push_back(fmt::format("--min-bytes is {}; allowed: at most --max-bytes, which is {}",
                                   options.min_bytes, options.max_bytes));
  if (!problems.empty()) throw InvalidInput(problems);
  return options;
}

int run(const Flags& flags) {
  const AllToAllOptions options = read_flags(flags);
  report::Progress progress({.label = "alltoall", .total = 100, .unit = "%"});
  const std::vector<AllToAllRow> rows =
      bench_alltoall(options, [&](double part) { progress.set(static_cast<int64_t>(100 * part)); });
  progress.finish();
  fmt::print("{}", flags.json ? to_json(options, rows).dump(2) + "\n" : to_text(options, rows));
  return total_wrong(rows) == 0 ? 0 : 1;
}

}  // namespace

std::vector<AllToAllRow> bench_alltoall(const AllToAllOptions& options,
                                        const std::function<void(double)>& progress) {
  comm::LocalWorld world(options.num_ranks);
  const std::vector<int64_t> all_sizes = sizes(options);
  const double parts = 2.0 * static_cast<double>(all_sizes.size());
  double part = 0;
  comm::BenchOptions measure{.budget_seconds = options.budget_seconds / parts};
  measure.progress = [&](double done) { progress((part + done) / parts); };

  std::vector<AllToAllRow> rows;
  for (const int64_t bytes : all_sizes) {
    AllToAllRow row{.bytes = bytes, .count = bytes / kElementBytes / options.num_ranks};
    row.num_wrong = comm::count_wrong_all_to_all(world, bytes);
    row.copy_seconds = comm::measure_copy(world, {bytes}, measure).front().seconds;
    ++part;
    row.seconds = comm::measure_all_to_all(world, {bytes}, measure).front().seconds;
    ++part;
    const auto n = static_cast<double>(options.num_ranks);
    row.algorithm_bytes_per_second = static_cast<double>(bytes) / row.seconds;
    row.bus_bytes_per_second = row.algorithm_bytes_per_second * (n - 1) / n;
    rows.push_back(row);
  }
  return rows;
}

std::string to_text(const AllToAllOptions& options, const std::vector<AllToAllRow>& rows) {
  std::string text = fmt::format(
      "# all-to-all, {} ranks as threads of one process; limit: {} ranks copy as many bytes at "
      "once\n"
      "#\n"
      "# {:>12} {:>12} {:>8} {:>6} {:>5} {:>11} {:>8} {:>8} {:>7} {:>11} {:>8}\n"
      "# {:>12} {:>12} {:>8} {:>6} {:>5} {:>11} {:>8} {:>8} {:>7} {:>11} {:>8}\n",
      options.num_ranks, options.num_ranks, "size", "count", "type", "redop", "root", "time",
      "algbw", "busbw", "#wrong", "limit", "time /", "(B)", "(elements)", "", "", "", "(us)",
      "(GB/s)", "(GB/s)", "", "(us)", "limit");
  for (const AllToAllRow& row : rows)
    text += fmt::format(
        "  {:>12} {:>12} {:>8} {:>6} {:>5} {:>11.2f} {:>8.2f} {:>8.2f} {:>7} {:>11.2f} {:>8.2f}\n",
        row.bytes, row.count, "float", "none", -1, row.seconds * 1e6,
        row.algorithm_bytes_per_second * 1e-9, row.bus_bytes_per_second * 1e-9, row.num_wrong,
        row.copy_seconds * 1e6, row.over_limit());
  text += fmt::format("# Wrong bytes          : {} {}\n", total_wrong(rows),
                      total_wrong(rows) == 0 ? "OK" : "FAILED");
  text += fmt::format("# Average bus bandwidth: {:.3f} GB/s\n", average_bus(rows) * 1e-9);
  return text;
}

Json to_json(const AllToAllOptions& options, const std::vector<AllToAllRow>& rows) {
  Json json{{"collective", "alltoall"}, {"transport", "local"}, {"ranks", options.num_ranks}};
  json["rows"] = Json::array();
  for (const AllToAllRow& row : rows)
    json["rows"].push_back({{"bytes", row.bytes},
                            {"count", row.count},
                            {"type", "float"},
                            {"seconds", row.seconds},
                            {"algorithm_bytes_per_second", row.algorithm_bytes_per_second},
                            {"bus_bytes_per_second", row.bus_bytes_per_second},
                            {"num_wrong_bytes", row.num_wrong},
                            {"copy_seconds", row.copy_seconds},
                            {"time_over_limit", row.over_limit()}});
  json["num_wrong_bytes"] = total_wrong(rows);
  json["average_bus_bytes_per_second"] = average_bus(rows);
  return json;
}

Run add_bench_alltoall(CLI::App& command) {
  const auto flags = std::make_shared<Flags>();
  command.add_option("--ranks", flags->ranks, "ranks, each a thread")->capture_default_str();
  command.add_option("--min-bytes", flags->min_bytes, "smallest buffer of a rank")
      ->capture_default_str();
  command.add_option("--max-bytes", flags->max_bytes, "largest buffer of a rank")
      ->capture_default_str();
  command.add_option("--factor", flags->factor, "between one size and the next")
      ->capture_default_str();
  command.add_option("--seconds", flags->seconds, "time budget of the whole run")
      ->capture_default_str();
  command.add_flag("--json", flags->json, "print JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
