#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/manifest.h>

#include <array>
#include <charconv>
#include <limits>
#include <string_view>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kManifestHash = "manifest.json.sha256";
// Version 1 had shards by stored parameter, of which only the same mesh could make sense.
constexpr std::string_view kFormatName = "piper-checkpoint-";
constexpr int64_t kFormatVersion = 2;
constexpr const char* kFormat = "piper-checkpoint-2";
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string hash_line(std::string_view manifest) {
  return fmt::format("{}  {}\n", files::sha256_hex(manifest), kManifest);
}

// 16 digits keep a uint64 exact, which a JSON number of the strict reader would not.
uint64_t read_seed(ObjectReader& reader) {
  const std::string text = reader.text("seed");
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    reader.problem(
        "seed", "is " + quote(Json(text)) + "; allowed: digits of an integer from 0 to 2^64 - 1");
  return seed;
}

// Degrees that a manifest names where they are more than 1.
std::array<std::pair<const char*, int64_t*>, 4> other_degrees(strategy::Mesh& mesh) {
  return {{{"vpp", &mesh.vpp}, {"etp", &mesh.etp}, {"tp", &mesh.tp}, {"cp", &mesh.cp}}};
}

CheckpointIdentity read_identity(ObjectReader& root) {
  CheckpointIdentity identity{.model = root.text("model"), .fingerprint = root.text("fingerprint")};
  root.integer("world_size", 1, kMax);
  if (const Json* json = root.object("mesh")) {
    ObjectReader mesh(*json, "mesh", root.problems());
    identity.mesh = {.pp = mesh.integer("pp", 1, 1 << 20),
                     .ep = mesh.integer("ep", 1, 1 << 20),
                     .dp = mesh.integer("dp", 1, 1 << 20)};
    for (const auto& [key, degree] : other_degrees(identity.mesh))
      if (json->contains(key)) *degree = mesh.integer(key, 1, 1 << 20);
    mesh.refuse_unknown();
  } else {
    root.problem("mesh", "is missing");
  }
  identity.layers_per_stage = root.integers("layers_per_stage", 0, 1 << 20);
  return identity;
}

TrainState read_state(ObjectReader& root) {
  TrainState state;
  const Json* json = root.object("state");
  if (json == nullptr) {
    root.problem("state", "is missing");
    return state;
  }
  ObjectReader reader(*json, "state", root.problems());
  state = {.step = reader.integer("step", 0, kMax),
           .seed = read_seed(reader),
           .target_tokens = reader.integer("target_tokens", 0, kMax),
           .skipped_steps = reader.integer("skipped_steps", 0, kMax),
           .skipped_in_a_row = reader.integer("skipped_in_a_row", 0, kMax, 0),
           .text_fingerprint = reader.text("text_sha256"),
           .extra = reader.raw("extra")};
  if (!state.extra.is_object())
    reader.problem("extra", "is " + quote(state.extra) + "; allowed: an object");
  reader.refuse_unknown();
  return state;
}

std::map<std::string, std::string> read_tensors(ObjectReader& reader) {
  std::map<std::string, std::string> hashes;
  const Json* tensors = reader.object("tensors");
  if (tensors == nullptr) return hashes;
  for (const auto& [name, hash] : tensors->items()) {
    if (hash.is_string())
      hashes.emplace(name, hash.get<std::string>());
    else
      reader.problem("tensors", "has " + quote(hash) + " for a tensor; allowed: its hash");
  }
  return hashes;
}

files::FileRecord read_file(ObjectReader& reader) {
  return {.name = reader.text("name"),
          .bytes = reader.integer("bytes", 0, kMax),
          .sha256 = reader.text("sha256"),
          .tensors = read_tensors(reader)};
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::string shard_name(int64_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Json to_json(const files::FileRecord& file) {
  Json json = {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}};
  if (!file.tensors.empty()) json["tensors"] = file.tensors;
  return json;
}

files::FileRecord parse_file_record(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  files::FileRecord file = read_file(reader);
  reader.refuse_unknown();
  problems.finish();
  return file;
}

Json mesh_to_json(const strategy::Mesh& mesh) {
  strategy::Mesh copy = mesh;
  Json json = {{"pp", mesh.pp}, {"ep", mesh.ep}, {"dp", mesh.dp}};
  for (const auto& [key, degree] : other_degrees(copy))
    if (*degree > 1) json[key] = *degree;
  return json;
}

Json to_json(const Manifest& manifest) {
  const CheckpointIdentity& identity = manifest.identity;
  const TrainState& state = manifest.state;
  Json files = Json::array();
  for (const files::FileRecord& file : manifest.files) files.push_back(to_json(file));
  return {{"format", kFormat},
          {"model", identity.model},
          {"fingerprint", identity.fingerprint},
          {"world_size", identity.mesh.world()},
          {"mesh", mesh_to_json(identity.mesh)},
          {"layers_per_stage", identity.layers_per_stage},
          {"state",
           {{"step", state.step},
            {"seed", std::to_string(state.seed)},
            {"target_tokens", state.target_tokens},
            {"skipped_steps", state.skipped_steps},
            {"skipped_in_a_row", state.skipped_in_a_row},
            {"text_sha256", state.text_fingerprint},
            {"extra", state.extra}}},
          {"files", files}};
}

namespace {

void require_version(const Json& json, const std::string& source) {
  const Json format = json.is_object() ? json.value("format", Json()) : Json();
  const std::string text = format.is_string() ? format.get<std::string>() : "";
  if (!text.starts_with(kFormatName) || text == kFormat) return;
  const std::string_view number = std::string_view(text).substr(kFormatName.size());
  int64_t version = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), version);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  const bool is_newer = error == std::errc::result_out_of_range || version > kFormatVersion;
  if (!is_number && !is_newer) return;
  throw OtherVersion(fmt::format(
      "{}: 'format' is {}, written by {} Piper; allowed: \"{}\" ({})", source, quote(format),
      is_newer ? "a newer" : "an earlier", kFormat,
      is_newer ? "go on with that Piper, or move the checkpoint away"
               : "finish that run with the Piper that began it, or start anew from its exported "
                 "weights"));
}

// Whether the mesh has so many ranks. Degrees from a file may have a product that fits no integer.
bool are_ranks_of(const strategy::Mesh& mesh, size_t number) {
  auto left = static_cast<int64_t>(number);
  for (const int64_t degree : {mesh.pp, mesh.dp, mesh.tp, mesh.cp}) {
    if (left % degree != 0) return false;
    left /= degree;
  }
  return left == 1;
}

}  // namespace

Manifest parse_manifest(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader root(json, "", &problems);
  require_version(json, source);
  root.choice("format", {kFormat});
  Manifest manifest{.identity = read_identity(root), .state = read_state(root)};
  const Json* files = root.array("files");
  for (size_t i = 0; files != nullptr && i < files->size(); ++i) {
    ObjectReader file((*files)[i], fmt::format("files[{}]", i), &problems);
    manifest.files.push_back(read_file(file));
    if (manifest.files.back().name != shard_name(static_cast<int64_t>(i)))
      file.problem("name", "is " + quote(Json(manifest.files.back().name)) +
                               "; allowed: " + shard_name(static_cast<int64_t>(i)));
    file.refuse_unknown();
  }
  if (problems.empty() && !are_ranks_of(manifest.identity.mesh, manifest.files.size()))
    root.problem("files", fmt::format("lists {} files; allowed: one for each rank of {}",
                                      manifest.files.size(), describe(manifest.identity.mesh)));
  root.refuse_unknown();
  problems.finish();
  return manifest;
}

void write_manifest(const fs::path& folder, const Manifest& manifest, const files::Disk& disk) {
  const std::string text = to_text(to_json(manifest), 2) + "\n";
  for (const auto& [name, content] :
       {std::pair(kManifest, text), std::pair(kManifestHash, hash_line(text))}) {
    files::FileWriter writer(folder / name, static_cast<int64_t>(content.size()), disk);
    writer.write(content);
    writer.finish();
  }
  files::sync_folder(folder);
}

Manifest read_manifest(const fs::path& checkpoint) {
  std::error_code error;
  for (const char* name : {kManifest, kManifestHash})
    if (!fs::is_regular_file(checkpoint / name, error) && !may_pass(error.value()))
      throw InvalidInput(fmt::format("{}: is not a complete checkpoint: {} is missing",
                                     checkpoint.string(), name));
  const std::string path = (checkpoint / kManifest).string();
  const std::string text = read_text_file(path, 1 << 30);
  if (read_text_file(checkpoint / kManifestHash, 1 << 10) != hash_line(text))
    throw InvalidInput(path + ": is damaged: " + kManifestHash + " disagrees with it");
  return parse_manifest(parse_json(text, path), path);
}

namespace {

// What is wrong with a file; "" = nothing.
std::string damage(const fs::path& checkpoint, const files::FileRecord& file, Depth depth) {
  std::error_code error;
  const auto bytes = fs::file_size(checkpoint / file.name, error);
  if (may_pass(error.value()))
    throw IoError(
        fmt::format("{}: cannot be read: {}", (checkpoint / file.name).string(), error.message()),
        error.value());
  if (!fs::exists(fs::symlink_status(checkpoint / file.name, error))) return "is missing";
  if (!fs::is_regular_file(checkpoint / file.name, error)) return "is damaged: it is no file";
  if (static_cast<int64_t>(bytes) != file.bytes)
    return fmt::format("is damaged: it holds {} bytes instead of {}", bytes, file.bytes);
  if (depth == Depth::kSizes) return "";
  const files::ReadFrom from =
      depth == Depth::kStorage ? files::ReadFrom::kStorage : files::ReadFrom::kCache;
  if (files::sha256_of_file(checkpoint / file.name, from) != file.sha256)
    return "is damaged: its SHA-256 is not the manifest's";
  return "";
}

}  // namespace

Inspection inspect_checkpoint(const fs::path& checkpoint, Depth depth) {
  std::error_code error;
  if (!fs::is_directory(checkpoint, error) && !may_pass(error.value()))
    throw InvalidInput(checkpoint.string() + ": there is no such checkpoint");
  Inspection found{.path = checkpoint};
  const auto add = [&](const std::string& problem) {
    found.problems.push_back(checkpoint.string() + ": " + problem);
  };
  const auto note = [&](const IoError& problem) {
    found.problems.emplace_back(problem.what());
    if (may_pass(problem.cause())) found.obstacle = Obstacle::kUnreadable;
  };
  try {
    found.manifest = read_manifest(checkpoint);
  } catch (const InvalidInput& problem) {
    found.problems = problem.problems();
    if (dynamic_cast<const OtherVersion*>(&problem) != nullptr)
      found.obstacle = Obstacle::kOtherVersion;
    return found;
  } catch (const IoError& problem) {
    note(problem);
    return found;
  }
  if (checkpoint.filename() != checkpoint_name(found.manifest->state.step))
    add(fmt::format("holds step {}, which its name does not say", found.manifest->state.step));
  for (const files::FileRecord& file : found.manifest->files) {
    try {
      if (const std::string what = damage(checkpoint, file, depth); !what.empty())
        add(file.name + " " + what);
    } catch (const IoError& problem) {
      note(problem);
    }
  }
  return found;
}

std::vector<std::string> differences(const Manifest& manifest, const CheckpointIdentity& run,
                                     const fs::path& checkpoint) {
  const CheckpointIdentity& saved = manifest.identity;
  std::vector<std::string> lines;
  if (saved.fingerprint != run.fingerprint)
    lines.push_back(fmt::format(
        "{}: is a checkpoint of another model: of '{}' (fingerprint {}), this run's is '{}' ({})",
        checkpoint.string(), saved.model, saved.fingerprint.substr(0, 12), run.model,
        run.fingerprint.substr(0, 12)));
  return lines;
}

std::string describe(const strategy::Mesh& mesh) {
  std::string text = fmt::format("pp {} x ep {} x dp {}", mesh.pp, mesh.ep, mesh.dp);
  strategy::Mesh copy = mesh;
  for (const auto& [key, degree] : other_degrees(copy))
    if (*degree > 1) text += fmt::format(" x {} {}", key, *degree);
  return text;
}

std::string resharding(const CheckpointIdentity& saved, const CheckpointIdentity& run) {
  if (saved.mesh == run.mesh && saved.layers_per_stage == run.layers_per_stage) return "";
  const auto layout = [&](const CheckpointIdentity& of) {
    return saved.mesh == run.mesh
               ? fmt::format("{} layers a stage", fmt::join(of.layers_per_stage, " + "))
               : describe(of.mesh);
  };
  return fmt::format("resharding from {} to {}", layout(saved), layout(run));
}

}  // namespace piper::checkpoint
