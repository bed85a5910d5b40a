// piper checkpoint list | verify: what a run has saved, and whether it can be trusted.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/report/table.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>

namespace piper::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Depth;
using checkpoint::Inspection;

struct CheckpointFlags {
  std::string folder;
  bool json = false;
};

struct Found {
  std::vector<Inspection> checkpoints;           // newest first
  std::vector<std::string> unfinished, damaged;  // names: leftovers, and what was set aside
};

// `given` is the folder of a run, of its checkpoints, or one checkpoint.
Found inspect(const std::string& given, Depth depth) {
  fs::path folder = fs::path(given).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (!fs::is_directory(folder)) throw InvalidInput(given + ": there is no such folder");
  if (fs::is_regular_file(folder / "manifest.json") ||
      folder.filename().string().starts_with("step-"))
    return {.checkpoints = {checkpoint::inspect_checkpoint(folder, depth)}};
  if (fs::is_directory(folder / "checkpoints")) folder /= "checkpoints";
  Found found{checkpoint::inspect_folder(folder, depth), checkpoint::leftovers(folder),
              checkpoint::damaged_names(folder)};
  if (found.checkpoints.empty() && found.unfinished.empty() && found.damaged.empty())
    throw InvalidInput(folder.string() + ": holds no checkpoints");
  return found;
}

// In UTC, of the manifest: the last file of a checkpoint to be written. A time inside would make
// equal runs differ.
std::string date_of(const Inspection& checkpoint) {
  std::error_code error;
  const auto time = fs::last_write_time(checkpoint.path / "manifest.json", error);
  if (error) return "";
  const auto seconds =
      std::chrono::floor<std::chrono::seconds>(std::chrono::file_clock::to_sys(time));
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(seconds.time_since_epoch().count()));
}

int64_t bytes_of(const checkpoint::Manifest& manifest) {
  return std::accumulate(
      manifest.files.begin(), manifest.files.end(), int64_t{0},
      [](int64_t sum, const files::FileRecord& file) { return sum + file.bytes; });
}

const Inspection* newest_complete(const Found& found) {
  const auto first = std::ranges::find_if(
      found.checkpoints, [](const Inspection& checkpoint) { return checkpoint.problems.empty(); });
  return first == found.checkpoints.end() ? nullptr : &*first;
}

Json to_json(const Inspection& checkpoint, bool newest) {
  Json json = {{"path", checkpoint.path.string()},
               {"complete", checkpoint.problems.empty()},
               {"newest_complete", newest},
               {"problems", checkpoint.problems}};
  if (!checkpoint.manifest) return json;
  const checkpoint::CheckpointIdentity& identity = checkpoint.manifest->identity;
  json.update({{"step", checkpoint.manifest->state.step},
               {"date_utc", date_of(checkpoint)},
               {"model", identity.model},
               {"fingerprint", identity.fingerprint},
               {"mesh", checkpoint::mesh_to_json(identity.mesh)},
               {"layers_per_stage", identity.layers_per_stage},
               {"bytes", bytes_of(*checkpoint.manifest)},
               {"num_files", checkpoint.manifest->files.size()}});
  return json;
}

void print(const Found& found, Depth depth) {
  using report::Align;
  const char* good = depth == Depth::kStorage ? "complete, every byte verified" : "complete";
  report::Table table;
  table.columns = {{"checkpoint"}, {"saved (UTC)"},          {"mesh"},
                   {"model"},      {"bytes", Align::kRight}, {"state"}};
  for (const Inspection& checkpoint : found.checkpoints) {
    std::vector<std::string> row = {checkpoint.path.filename().string(), date_of(checkpoint), "?",
                                    "?", "?"};
    if (const auto& manifest = checkpoint.manifest)
      row = {row[0], row[1], checkpoint::describe(manifest->identity.mesh),
             manifest->identity.model, format_bytes(static_cast<double>(bytes_of(*manifest)))};
    row.push_back(
        !checkpoint.problems.empty() ? fmt::format("BAD ({} problem{})", checkpoint.problems.size(),
                                                   checkpoint.problems.size() == 1 ? "" : "s")
        : &checkpoint == newest_complete(found) ? fmt::format("{}; --resume takes this one", good)
                                                : good);
    table.rows.push_back(std::move(row));
  }
  for (const std::string& name : found.unfinished)
    table.rows.push_back({name, "", "", "", "", "an unfinished save; --resume sweeps it away"});
  for (const std::string& name : found.damaged)
    table.rows.push_back({name, "", "", "", "", "damaged, set aside; only --fresh deletes it"});
  say("{}", Lines{report::to_text(table)});
  for (const Inspection& checkpoint : found.checkpoints)
    for (const std::string& problem : checkpoint.problems) say("{}\n", problem);
}

int run_checkpoint(const CheckpointFlags& flags, Depth depth) {
  const Found found = inspect(flags.folder, depth);
  if (flags.json) {
    Json list = Json::array();
    for (const Inspection& checkpoint : found.checkpoints)
      list.push_back(to_json(checkpoint, &checkpoint == newest_complete(found)));
    say_json(Json{{"verified", depth == Depth::kStorage},
                  {"checkpoints", list},
                  {"unfinished", found.unfinished},
                  {"damaged", found.damaged}});
  } else {
    print(found, depth);
  }
  const bool bad = std::ranges::any_of(
      found.checkpoints, [](const Inspection& checkpoint) { return !checkpoint.problems.empty(); });
  const bool lost = newest_complete(found) == nullptr && !found.damaged.empty();
  return bad || lost ? 1 : 0;
}

Run add(Subcommand command, Depth depth) {
  auto flags = std::make_shared<CheckpointFlags>();
  command.add_option("folder", flags->folder, "a run, its checkpoints folder, or one checkpoint")
      .required();
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags, depth] { return run_checkpoint(*flags, depth); };
}

}  // namespace

Run add_checkpoint(Subcommand command) {
  command.require_subcommand();
  const Subcommand list = command.add_subcommand(
      "list", "step, date, mesh, model, bytes; manifests and sizes of files are checked");
  const Subcommand verify =
      command.add_subcommand("verify", "read every byte and compare with the SHA-256 manifests");
  command.footer("Exit code 1 when something is missing or damaged.");
  return [list, run_list = add(list, Depth::kSizes), run_verify = add(verify, Depth::kStorage)] {
    return list.parsed() ? run_list() : run_verify();
  };
}

}  // namespace piper::cli
