#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/files/output.h>
#include <piper/report/run_files.h>
#include <piper/train/run_folder.h>
#include <piper/train/tensorboard.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace piper::train {

namespace fs = std::filesystem;

namespace {

// In RUN itself, beside what damage left.
constexpr std::array<std::string_view, 10> kFilesOfARun = {
    report::kStrategyFile,        report::kMetricsFile,    report::kPredictedTraceFile,
    report::kMeasuredTraceFile,   report::kComparisonFile, report::kTrafficFile,
    report::kExpertLoadFile,      report::kRunFile,        report::kClusterFile,
    report::kProposedStrategyFile};
constexpr std::array kFoldersOfARun = {"checkpoints", "tensorboard", "weights"};

// What file_tail.h puts beside a record: "metrics.jsonl.damaged", "metrics.jsonl.damaged-2".
bool is_damaged_tail(const std::string& name) {
  const size_t mark = name.rfind(".damaged");
  if (mark == std::string::npos) return false;
  const std::string behind = name.substr(mark + std::string_view(".damaged").size());
  return behind.empty() || (behind.size() > 1 && behind.front() == '-' &&
                            behind.find_first_not_of("0123456789", 1) == std::string::npos);
}
bool is_damaged_metrics(const std::string& name) {
  return name.starts_with("metrics.jsonl.damaged") && is_damaged_tail(name);
}

}  // namespace

void refuse_earlier_run(const fs::path& folder) {
  const fs::path checkpoints = folder / "checkpoints";
  std::vector<std::string> names = checkpoint::checkpoint_names(checkpoints);
  if (names.empty()) names = checkpoint::damaged_names(checkpoints);
  if (names.empty()) return;
  throw InvalidInput(fmt::format(
      "{} holds checkpoints of an earlier run ({}); pass --resume to go on from the newest that "
      "is sound, --fresh to delete them, or name another --run folder",
      checkpoints.string(), fmt::join(names, ", ")));
}

std::optional<checkpoint::FoundCheckpoint> RunFolder::open() {
  const fs::path checkpoints = run_.request.folder / "checkpoints";
  files::make_folders(run_.request.folder);
  require_records();
  lock_.emplace(run_.request.folder);
  if (!lock_->warning().empty()) run_.say(lock_->warning());
  if (run_.request.checkpoint_every > 0) files::make_folders(checkpoints);
  for (const char* folder : kFoldersOfARun) lock_->hold(run_.request.folder / folder);
  if (run_.request.fresh) checkpoint::require_removable(checkpoints);
  for (const std::string& leftover : checkpoint::sweep_leftovers(checkpoints))
    run_.say("removed unfinished save " + leftover);
  return find_checkpoint(checkpoints);
}

void RunFolder::begin() const {
  if (run_.request.fresh) remove_earlier_run();
}

void RunFolder::check() {
  for (const char* folder : kFoldersOfARun) lock_->hold(run_.request.folder / folder);
  if (const std::string lost = lock_->lost(); !lost.empty())
    throw IoError(
        fmt::format("{}: was removed or replaced while the run holds it, and another run may have "
                    "begun there; nothing more is saved",
                    lost));
}

// Nothing of somebody else's is replaced, and nothing that this run reads: known before it begins.
void RunFolder::require_records() const {
  const std::string strategy = files::json_file_text(strategy::to_json(run_.request.strategy));
  const std::string cluster = files::json_file_text(cluster::to_json(run_.request.cluster));
  for (const std::string_view name : kFilesOfARun) {
    const fs::path path = run_.request.folder / name;
    // It is written as it is read.
    if (files::holds(path, name == report::kStrategyFile  ? strategy
                           : name == report::kClusterFile ? cluster
                                                          : "?"))
      continue;
    files::require_output(path, files::Existing::kOurs);
  }
}

// What --fresh removes: checkpoints, records and results, by their names. Exported weights are a
// result that somebody asked for, and stay.
void RunFolder::remove_earlier_run() const {
  for (const std::string& note :
       checkpoint::remove_checkpoints(run_.request.folder / "checkpoints"))
    run_.say(note);
  const auto remove_in = [](const fs::path& folder, const auto& wanted) {
    std::error_code error;
    if (fs::is_symlink(folder, error)) return;
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
      if (!entry->is_directory() && wanted(entry->path().filename().string()))
        files.push_back(entry->path());
    for (const fs::path& file : files)
      if (!fs::remove(file, error) && error)
        throw IoError(file.string() + ": cannot be removed: " + error.message());
  };
  for (const std::string_view name : kFilesOfARun) files::remove_output(run_.request.folder / name);
  remove_in(run_.request.folder, is_damaged_metrics);
  remove_in(run_.request.folder / "tensorboard", [](const std::string& name) {
    return name.starts_with("events.") && is_damaged_tail(name);
  });
}

std::optional<checkpoint::FoundCheckpoint> RunFolder::find_checkpoint(
    const fs::path& checkpoints) const {
  if (!run_.request.resume) {
    if (!run_.request.fresh) refuse_earlier_run(run_.request.folder);
    return std::nullopt;
  }
  checkpoint::Search search = checkpoint::find_newest_complete(checkpoints);
  if (!search.newest) return checkpoint::require_newest_complete(checkpoints);
  for (const checkpoint::Inspection& damaged : search.damaged)
    if (const std::string note = checkpoint::set_aside(damaged); !note.empty()) run_.say(note);
  return std::move(*search.newest);
}

}  // namespace piper::train
