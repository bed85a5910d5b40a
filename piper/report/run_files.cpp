#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/chrome_trace.h>
#include <piper/report/run_files.h>
#include <piper/strategy/strategy.h>

#include <algorithm>
#include <functional>

namespace piper::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTraceBytes = 256 << 20;

// Reads the files of a folder one by one; a bad one does not keep the others from being checked.
class FolderReader {
 public:
  explicit FolderReader(fs::path folder) : folder_(std::move(folder)) {}

  void json(const std::string& name,
            const std::function<void(const Json&, const std::string&)>& use,
            int64_t max_bytes = 64 << 20) {
    file(name, [&](const fs::path& path) { use(read_json_file(path, max_bytes), path.string()); });
  }

  void file(const std::string& name, const std::function<void(const fs::path&)>& use) {
    const fs::path path = folder_ / name;
    if (!fs::exists(path)) return;
    ++num_found_;
    try {
      use(path);
    } catch (const InvalidInput& error) {
      problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
    }
  }

  void finish() const {
    if (num_found_ == 0) {
      throw IoError(folder_.string() + ": holds no file of a run (" + kStrategyFile + ", " +
                    kMetricsFile + ", " + kPlanFile + ", ...)");
    }
    if (!problems_.empty()) throw InvalidInput(problems_);
  }

 private:
  fs::path folder_;
  int num_found_ = 0;
  std::vector<std::string> problems_;
};

std::string words(const strategy::Strategy& s) {
  return fmt::format(
      "pp {} · ep {} · dp {} on {} rank{}, schedule {}, {} micro-batches of {} {} a rank, "
      "{} tokens each, recompute {}, {}{}",
      s.mesh.pp, s.mesh.ep, s.mesh.dp, s.mesh.world(), s.mesh.world() == 1 ? "" : "s",
      strategy::name(s.schedule), s.num_micro_batches, s.micro_batch_sequences,
      s.micro_batch_sequences == 1 ? "sequence" : "sequences", s.sequence,
      strategy::name(s.recompute), strategy::name(s.precision),
      s.capacity.is_limited()
          ? fmt::format(", capacity factor {} (drop by {}{})", s.capacity.factor,
                        strategy::name(s.capacity.drop), s.capacity.pads ? ", padded" : "")
          : "");
}

bool matches(const PlanRow& row, const strategy::Strategy& s) {
  const std::string mesh = fmt::format("pp {} · ep {} · dp {}", s.mesh.pp, s.mesh.ep, s.mesh.dp);
  return (row.mesh == mesh || row.mesh.starts_with(mesh + " ")) &&
         row.schedule == strategy::name(s.schedule) &&
         row.recompute == strategy::name(s.recompute) &&
         row.micro_batch_sequences == s.micro_batch_sequences &&
         row.num_micro_batches == s.num_micro_batches;
}

void take_larger(std::optional<double>& largest, const std::optional<int64_t>& bytes) {
  if (bytes) largest = std::max(largest.value_or(0), static_cast<double>(*bytes));
}

// Marks the trained strategy among the ranked ones and gives it what was measured.
void mark_chosen(Report& report) {
  if (!report.plan || !report.trained) return;
  const auto row = std::find_if(report.plan->ranked.begin(), report.plan->ranked.end(),
                                [&](const PlanRow& r) { return matches(r, *report.trained); });
  if (row == report.plan->ranked.end()) return;
  row->chosen = true;
  if (!report.comparison) return;
  // A strategy given by its axes carries no prediction of its own.
  if (!row->mfu) row->mfu = report.comparison->predicted_mfu;
  if (!row->step_seconds) row->step_seconds = report.comparison->predicted_step_seconds;
  const bool is_predicted = row->peak_bytes.has_value();
  for (const RankComparison& rank : report.comparison->ranks) {
    if (!is_predicted) take_larger(row->peak_bytes, rank.predicted_peak_bytes);
    take_larger(row->measured_peak_bytes, rank.measured_peak_bytes);
  }
  row->measured_mfu = report.comparison->measured_mfu;
  row->measured_step_seconds = report.comparison->measured_step_seconds;
}

void read_plans(FolderReader& files, const fs::path& folder, Report& report) {
  std::vector<std::string> names;
  if (fs::is_directory(folder / kPlansFolder)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder / kPlansFolder)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    files.json(std::string(kPlansFolder) + "/" + name,
               [&](const Json& json, const std::string& source) {
                 report.further_plans.push_back(parse_plan_document(json, source));
               });
  }
}

}  // namespace

Json to_json(const Header& header) {
  Json json;
  json["model"] = header.model;
  json["cluster"] = header.cluster;
  json["facts"] = Json::object();
  for (const auto& [label, text] : header.facts) json["facts"][label] = text;
  return json;
}

Header parse_header(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  Header header{.model = reader.text("model", ""), .cluster = reader.text("cluster", "")};
  if (const Json* facts = reader.object("facts")) {
    ObjectReader texts(*facts, "facts", &problems);
    for (const auto& [label, value] : facts->items())
      header.facts.emplace_back(label, texts.text(label));
  }
  reader.refuse_unknown();
  problems.finish();
  return header;
}

Report read_run(const fs::path& folder) {
  if (!fs::is_directory(folder)) throw IoError(folder.string() + ": is not a folder");
  Report report;
  FolderReader files(folder);
  files.json(kRunFile,
             [&](auto& json, auto& source) { report.header = parse_header(json, source); });
  files.json(kStrategyFile, [&](auto& json, auto& source) {
    report.trained = strategy::parse_strategy(json, source);
    report.plan = parse_plan_document(json, source);
    report.plan->notes = {"Of the ranking only the strategy that was trained is known here."};
  });
  files.file(kMetricsFile, [&](const fs::path& path) {
    report.metrics = parse_metrics(read_text_file(path), path.string());
  });
  files.json(
      kPredictedTraceFile,
      [&](auto& json, auto& source) { report.predicted = parse_chrome_trace(json, source); },
      kMaxTraceBytes);
  files.json(
      kMeasuredTraceFile,
      [&](auto& json, auto& source) { report.measured = parse_chrome_trace(json, source); },
      kMaxTraceBytes);
  files.json(kComparisonFile,
             [&](auto& json, auto& source) { report.comparison = parse_comparison(json, source); });
  files.json(kExpertLoadFile, [&](auto& json, auto& source) {
    report.expert_rows = parse_expert_rows(json, source);
  });
  files.json(kPlanFile,
             [&](auto& json, auto& source) { report.plan = parse_plan_document(json, source); });
  files.json(kClusterFile, [&](auto& json, auto& source) {
    report.machine = cluster::parse_cluster(json, source);
  });
  read_plans(files, folder, report);
  files.finish();
  if (report.trained) {
    report.header.strategy = words(*report.trained);
    if (report.header.model.empty()) report.header.model = report.trained->model;
    if (report.header.cluster.empty()) report.header.cluster = report.trained->cluster;
  }
  mark_chosen(report);
  return report;
}

void add_plan(Report& report, PlanDocument plan) {
  const bool is_own = plan.model == report.header.model && plan.cluster == report.header.cluster;
  if (!is_own) {
    report.further_plans.push_back(std::move(plan));
    return;
  }
  report.plan = std::move(plan);
  mark_chosen(report);
}

}  // namespace piper::report
