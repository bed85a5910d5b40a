// piper checkpoint list | verify | export: what a run has saved, whether it can be trusted, and its
// weights as a Hugging Face folder.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/checkpoint/model_fingerprint.h>
#include <piper/checkpoint/tensor_check.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/model/import.h>
#include <piper/model/trainable.h>
#include <piper/report/table.h>
#include <piper/train/training_settings.h>

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

struct ExportFlags {
  std::string folder, out, model;
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

// The newest of a folder that is whole, its bytes verified; of one checkpoint, that one.
checkpoint::FoundCheckpoint take(const std::string& given) {
  Found found = inspect(given, Depth::kHashes);
  const Inspection* newest = newest_complete(found);
  std::vector<std::string> problems;
  for (const Inspection& checkpoint : found.checkpoints) {
    if (&checkpoint == newest) break;
    problems.insert(problems.end(), checkpoint.problems.begin(), checkpoint.problems.end());
  }
  if (newest == nullptr)
    throw InvalidInput(problems.empty() ? std::vector{given + ": holds no complete checkpoint"}
                                        : problems);
  for (const std::string& problem : problems) say_error("not taken: " + problem);
  return {newest->path, *newest->manifest};
}

// The config that the checkpoint holds, else the user's.
Json config_of(const checkpoint::FoundCheckpoint& found, const ExportFlags& flags) {
  const Json& extra = found.manifest.state.extra;
  const auto saved = extra.find(train::kModelConfig);
  if (saved == extra.end()) {
    if (flags.model.empty())
      throw InvalidInput(
          found.path.string() +
          ": holds no config of its model, as earlier Pipers saved it; give --model");
    return model::load_config(flags.model);
  }
  if (!flags.model.empty())
    throw InvalidInput(fmt::format(
        "--model is {}, and {} holds the config that it was trained with; allowed: without --model",
        flags.model, found.path.string()));
  return *saved;
}

// Returns the config's model, with as many modules of multi-token prediction as the checkpoint has.
model::Model model_of(const Json& config, const checkpoint::CheckpointReader& reader) {
  const checkpoint::FoundCheckpoint& found = reader.checkpoint();
  const std::string source = (found.path / "manifest.json").string();
  const model::Model alone = model::import_config(config, source);
  std::vector<std::string> problems = model::untrainable(alone, 1);
  if (!problems.empty()) throw InvalidInput(problems);
  for (int64_t depth = 0; depth <= model::kMaxMtpDepth; ++depth) {
    model::Model model = model::with_mtp(alone, depth);
    try {
      reader.require_exactly(model);
      return model;
    } catch (const InvalidInput& missing) {
      if (depth == 0) problems = missing.problems();
    }
  }
  throw InvalidInput(problems);
}

// An earlier Piper's fingerprint tells of the user's config what it can.
void check_given_config(const model::Model& model, const checkpoint::FoundCheckpoint& found) {
  const std::string& fingerprint = found.manifest.identity.fingerprint;
  if (!checkpoint::has_fingerprint(model, fingerprint))
    throw InvalidInput(fmt::format("{}: is a checkpoint of another model ('{}') than --model",
                                   found.path.string(), found.manifest.identity.model));
  if (model.rope.scaling != "none")
    say_error(fmt::format(
        "the numbers of the rotary scaling '{}' are taken from --model: {} does not hold them",
        model.rope.scaling, found.path.string()));
}

int run_export(const ExportFlags& flags) {
  if (flags.out.empty()) throw InvalidInput("--out is empty; allowed: the name of a folder");
  std::error_code error;
  if (fs::exists(fs::symlink_status(flags.out, error)) &&
      !(fs::is_directory(flags.out, error) && fs::is_empty(flags.out, error)))
    throw InvalidInput(flags.out + ": is there already; allowed: a new folder, or an empty one");
  const checkpoint::CheckpointReader reader(take(flags.folder));
  const checkpoint::FoundCheckpoint& found = reader.checkpoint();
  const Json config = config_of(found, flags);
  const model::Model model = model_of(config, reader);
  if (!flags.model.empty()) check_given_config(model, found);
  std::vector<nn::NamedTensor> weights = reader.weights(model);
  if (const std::string bad = checkpoint::first_not_finite(weights); !bad.empty())
    throw InvalidInput(fmt::format("{}: is not exported: its {} holds infinities or NaN",
                                   found.path.string(), bad));
  checkpoint::export_weights(flags.out, checkpoint::config_with_modules(config, model),
                             checkpoint::with_module_tables(std::move(weights), model));
  if (flags.json)
    say_json(Json{{"step", found.manifest.state.step},
                  {"checkpoint", found.path.string()},
                  {"out", flags.out}});
  else
    say("step {} of {} is exported to {}\n", found.manifest.state.step, found.path.string(),
        flags.out);
  return 0;
}

Run add_export_of_checkpoint(Subcommand command) {
  auto flags = std::make_shared<ExportFlags>();
  command
      .add_option("folder", flags->folder,
                  "one checkpoint, or a run, whose newest complete one is taken")
      .required();
  command.add_option("--out", flags->out, "the Hugging Face folder to write, which is new or empty")
      .required();
  command.add_option("--model", flags->model,
                     "config.json, for a checkpoint that an earlier Piper saved without it");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_export(*flags); };
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
  const Subcommand of_weights = command.add_subcommand(
      "export", "write a checkpoint's weights as a Hugging Face folder, without training");
  command.footer("Exit code of list and verify: 1 when something is missing or damaged.");
  return
      [list, verify, run_list = add(list, Depth::kSizes), run_verify = add(verify, Depth::kStorage),
       run_weights = add_export_of_checkpoint(of_weights)] {
        return list.parsed() ? run_list() : verify.parsed() ? run_verify() : run_weights();
      };
}

}  // namespace piper::cli
