// What 400 strategies cost, as it was: tests/golden/prices.csv. A change of a price that is meant
// renews the file by PIPER_WRITE_GOLDEN=1, and its commit says which rows moved and why.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/import.h>
#include <piper/strategy/runnable.h>
#include <testing/cost/strategy_draw.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace piper;
using namespace piper::cost;
using strategy::Strategy;

namespace {

// A row: which strategy, and its figures. Seconds of the busiest stage by what they are spent on,
// bytes of the fullest stage; of profile piper what the exact costs of this Piper say beside it,
// where it runs the strategy.
constexpr int kRows = 400, kOfOrders = 60, kOfPairs = 40;
constexpr const char* kProfiles[] = {"piper", "megatron", "megatron-bridge", "torchtitan"};
constexpr const char* kClusters[] = {"dgx-h100", "frontier", "two-data-centres"};
constexpr const char* kModels[] = {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "glm-4.5",
                                   "m10b"};
constexpr double kMoved = 1e-3;  // of a figure; of a component, in parts of the whole

struct Figure {
  const char* name;
  const char* whole;  // that it is a part of; "" = it is one itself
  std::optional<double> value;
};
using Figures = std::vector<Figure>;

Figures figures_of(const Estimate& e, const std::optional<Estimate>& exact) {
  const auto exactly = [&](double Estimate::*of) {
    return exact ? std::optional<double>((*exact).*of) : std::nullopt;
  };
  return {{"seconds", "", e.seconds},
          {"compute", "seconds", e.time.compute},
          {"recompute", "seconds", e.time.recompute},
          {"tensor", "seconds", e.time.tensor},
          {"exchange", "seconds", e.time.exchange},
          {"context", "seconds", e.time.context},
          {"messages", "seconds", e.time.messages},
          {"bubble", "seconds", e.time.bubble},
          {"reductions", "seconds", e.time.reductions},
          {"update", "seconds", e.time.update},
          {"offload", "seconds", e.time.offload},
          {"peak_bytes", "", e.peak_bytes},
          {"weights_and_gradients", "peak_bytes", e.fullest.weights_and_gradients},
          {"optimizer", "peak_bytes", e.fullest.optimizer},
          {"activations", "peak_bytes", e.fullest.activations},
          {"working", "peak_bytes", e.fullest.working},
          {"exchange_scratch", "peak_bytes", e.fullest.exchange},
          {"fixed", "peak_bytes", e.fullest.fixed},
          {"exact_seconds", "", exactly(&Estimate::seconds)},
          {"exact_peak_bytes", "", exactly(&Estimate::peak_bytes)}};
}

struct Row {
  std::string model, cluster, profile;
  double imbalance = 1;
  Strategy strategy;
};

Figures priced(const Row& row) {
  const model::Model model = model::load_model(row.model);
  const cluster::Cluster cluster = cluster::load_cluster(row.cluster);
  const Strategy& s = row.strategy;
  const Estimate estimate =
      TrainerEstimator(model, cluster, load_trainer(row.profile), s.precision, s.sequence)
          .estimate(s, row.imbalance);
  std::optional<Estimate> exact;
  if (row.profile == "piper" && strategy::not_runnable(s, model).empty())
    exact = ExecutorEstimator(model, cluster, s.precision, s.sequence).estimate(s, row.imbalance);
  return figures_of(estimate, exact);
}

std::string quoted(std::string json) {
  for (size_t at = 0; (at = json.find('"', at)) != std::string::npos; at += 2)
    json.insert(at, "\"");
  return "\"" + json + "\"";
}

std::string line_of(const Row& row, const Figures& figures) {
  std::string line = fmt::format("{},{},{},{},{}", row.model, row.cluster, row.profile,
                                 row.imbalance, quoted(strategy::to_json(row.strategy).dump()));
  for (const Figure& f : figures) line += f.value ? fmt::format(",{:.6g}", *f.value) : ",";
  return line + "\n";
}

// The fields of a line; one in quotes has commas, and quotes twice.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool in_quotes = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && in_quotes && i + 1 < line.size() && line[i + 1] == '"')
      fields.back() += line[i++];
    else if (line[i] == '"')
      in_quotes = !in_quotes;
    else if (line[i] == ',' && !in_quotes)
      fields.emplace_back();
    else
      fields.back() += line[i];
  }
  return fields;
}

constexpr size_t kKeys = 5;  // fields before the figures

Row row_of(const std::vector<std::string>& fields, const std::string& source) {
  return {.model = fields[0],
          .cluster = fields[1],
          .profile = fields[2],
          .imbalance = std::stod(fields[3]),
          .strategy = strategy::parse_strategy(parse_json(fields[4], source), source)};
}

// Only where there is no file: a file keeps its strategies, whatever is drawn today.
std::vector<Row> drawn_rows() {
  const example::DrawnFrom plain{.tp = {1, 1, 2, 4},
                                 .cp = {1, 1, 2},
                                 .dp = {1, 2, 4, 8, 16},
                                 .ep = {1, 2, 4, 8, 16},
                                 .micro_batch_sequences = {1, 1, 2},
                                 .num_micro_batches = {1, 2, 7, 16, 32}};
  example::DrawnFrom with_orders = plain;
  with_orders.moe_schedules = true;
  example::StrategyDraw draw(plain, 20261129), orders(with_orders, 20261130);
  std::vector<Row> rows;
  while (rows.size() < kRows) {
    const size_t i = rows.size();
    const bool of_orders = i < kOfOrders, of_pairs = !of_orders && i < kOfOrders + kOfPairs;
    Row row{.model = kModels[i % std::size(kModels)],
            .cluster = kClusters[i / 4 % std::size(kClusters)],
            // Other trainers have no orders of a mixture layer.
            .profile = of_orders ? "piper" : kProfiles[i % std::size(kProfiles)],
            .imbalance = i % 3 == 2 ? 1.25 : 1,
            .strategy = {}};
    const model::Model model = model::load_model(row.model);
    const cluster::Cluster cluster = cluster::load_cluster(row.cluster);
    const TrainerProfile trainer = load_trainer(row.profile);
    if (of_orders && model.num_moe_layers() == 0) row.model = kModels[0];
    const auto suits = [&](const Strategy& s) {
      if (s.mesh.world() > cluster.num_devices()) return false;
      if (of_orders && s.moe_schedule == strategy::MoeSchedule::kPlain) return false;
      if (of_pairs && !strategy::pairs(s.schedule)) return false;
      try {
        require_priced(s, trainer, cluster);
      } catch (const InvalidInput&) {
        return false;
      }
      return true;
    };
    row.strategy = (of_orders ? orders : draw).strategy(model::load_model(row.model), suits);
    rows.push_back(std::move(row));
  }
  return rows;
}

void write(const std::filesystem::path& path, const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    const Figures figures = priced(row);
    if (text.empty()) {
      text = "model,cluster,profile,imbalance,strategy";
      for (const Figure& f : figures) text += std::string(",") + f.name;
      text += "\n";
    }
    text += line_of(row, figures);
  }
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("prices are what they were: 400 drawn strategies") {
  const std::filesystem::path path = std::filesystem::path(PIPER_GOLDEN_FOLDER) / "prices.csv";
  std::vector<std::vector<std::string>> lines;
  if (std::filesystem::exists(path)) {
    std::istringstream text(read_text_file(path));
    for (std::string line; std::getline(text, line);) lines.push_back(fields_of(line));
  }
  if (std::getenv("PIPER_WRITE_GOLDEN") != nullptr) {
    std::vector<Row> rows;
    for (size_t i = 1; i < lines.size(); ++i) rows.push_back(row_of(lines[i], path.string()));
    write(path, rows.empty() ? drawn_rows() : rows);
    MESSAGE("written: tests/golden/prices.csv");
    return;
  }
  REQUIRE(lines.size() == kRows + 1);
  for (size_t i = 1; i < lines.size(); ++i) {
    const Row row = row_of(lines[i], path.string());
    const Figures figures = priced(row);
    REQUIRE(lines[i].size() == kKeys + figures.size());
    std::map<std::string, double> known;
    std::string moved;
    for (size_t k = 0; k < figures.size(); ++k) {
      const Figure& f = figures[k];
      const std::string& text = lines[i][kKeys + k];
      if (text.empty() != !f.value)
        moved += fmt::format(" {} is {}", f.name, text.empty() ? "new" : "gone");
      if (text.empty() || !f.value) continue;
      const double was = known[f.name] = std::stod(text);
      const double whole = *f.whole == '\0' ? was : known.at(f.whole);
      if (!(std::abs(*f.value - was) <= kMoved * whole))
        moved += fmt::format(" {} {:.6g} (was {})", f.name, *f.value, text);
    }
    if (!moved.empty())
      FAIL_CHECK("row ", i, ", ", row.model, " on ", row.cluster, " by ", row.profile, ":", moved);
  }
}
