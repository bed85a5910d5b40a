#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
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
  lock_.emplace(run_.request.folder);
  if (!lock_->warning().empty()) run_.say(lock_->warning());
  if (run_.request.fresh) remove_earlier_run();
  for (const std::string& leftover : checkpoint::sweep_leftovers(checkpoints))
    run_.say("removed unfinished save " + leftover);
  return find_checkpoint(checkpoints);
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
  remove_in(run_.request.folder, [](const std::string& name) {
    return name.starts_with("metrics.jsonl.damaged") ||
           std::ranges::count(kFilesOfARun, std::string_view(name)) > 0;
  });
  remove_in(run_.request.folder / "tensorboard", [](const std::string& name) {
    return is_event_file(name) ||
           (name.starts_with("events.") && name.find(".damaged") != std::string::npos);
  });
}

std::optional<checkpoint::FoundCheckpoint> RunFolder::find_checkpoint(
    const fs::path& checkpoints) const {
  if (!run_.request.resume) {
    refuse_earlier_run(run_.request.folder);
    return std::nullopt;
  }
  checkpoint::Search search = checkpoint::find_newest_complete(checkpoints);
  if (!search.newest) return checkpoint::require_newest_complete(checkpoints);
  for (const checkpoint::Inspection& damaged : search.damaged)
    if (const std::string note = checkpoint::set_aside(damaged); !note.empty()) run_.say(note);
  return std::move(*search.newest);
}

}  // namespace piper::train
