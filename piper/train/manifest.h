// What a checkpoint says of itself, and the folder that holds the checkpoints of a run.
//
//   <folder>/step-00000120/           complete: put in place by one rename
//     rank-00000.safetensors ...      a shard a rank
//     manifest.json                   model, mesh, state of the run, size and SHA-256 of every shard
//     manifest.json.sha256            of the manifest, as `sha256sum -c` reads it
//   <folder>/step-00000140.tmp-4711-0/  a save that has not been committed
//
// A crash leaves at most a .tmp folder, which sweep_leftovers() removes; nothing is ever changed in place.
#pragma once

#include <piper/base/json.h>
#include <piper/strategy/strategy.h>
#include <piper/train/file_writer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace piper::train {

// What was saved, and how it was laid out. To resume, the model must be the same; any mesh can.
struct CheckpointIdentity {
  std::string model;        // name, for messages
  std::string fingerprint;  // model_fingerprint()
  strategy::Mesh mesh;
  std::vector<int64_t> layers_per_stage;
  bool operator==(const CheckpointIdentity&) const = default;
};

// The position of the run.
struct TrainState {
  int64_t step = 0;              // steps done
  uint64_t seed = 0;             // of initial weights and of data; the step is the data's position
  int64_t target_tokens = 0;     // seen so far, all ranks
  int64_t skipped_steps = 0;     // updates skipped because loss or gradient was not finite
  std::string text_fingerprint;  // Text::fingerprint() of the training text
  Json extra = Json::object();   // the loop's own
};

struct Manifest {
  CheckpointIdentity identity;
  TrainState state;
  std::vector<FileRecord> files;  // by rank
};

// SHA-256 over all that decides what a model computes and which tensors it has; not over its name or over
// hyperparameters of training (initialiser, auxiliary coefficient).
std::string model_fingerprint(const model::Model& model);

std::string checkpoint_name(int64_t step);  // "step-00000120"
std::string shard_name(int64_t rank);       // "rank-00003.safetensors"

Json to_json(const FileRecord& file);
FileRecord parse_file_record(const Json& json, const std::string& source);  // throws InvalidInput
Json to_json(const Manifest& manifest);
Manifest parse_manifest(const Json& json,
                        const std::string& source);  // throws InvalidInput with all problems

// Writes manifest.json and its hash into a folder and syncs both files and the folder. Throws IoError.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest,
                    const Disk& disk = real_disk());

// How files are compared with the manifest: by their sizes alone, or read and hashed.
enum class Depth { kSizes, kHashes };

struct Inspection {
  std::filesystem::path path;
  std::optional<Manifest> manifest;  // none: it cannot be read
  std::vector<std::string>
      problems;  // a line for every file that is missing or damaged; empty = complete
};

// Compares a checkpoint with its manifest. Throws InvalidInput when there is no such folder.
Inspection inspect_checkpoint(const std::filesystem::path& checkpoint, Depth depth);

// As above, by hashes. Throws InvalidInput with all problems.
Manifest verify_checkpoint(const std::filesystem::path& checkpoint);

// Why this run cannot go on from a checkpoint: it is of another model. One line each, empty = it can.
std::vector<std::string> differences(const Manifest& manifest, const CheckpointIdentity& run,
                                     const std::filesystem::path& checkpoint);

std::string describe(const strategy::Mesh& mesh);  // "pp 2 x ep 2 x dp 2"

// "resharding from pp 2 x ep 2 x dp 2 to pp 1 x ep 1 x dp 1"; "" when both lay the model out alike.
std::string resharding(const CheckpointIdentity& saved, const CheckpointIdentity& run);

struct FoundCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
};
struct Search {
  std::optional<FoundCheckpoint> newest;  // that is complete and undamaged
  std::vector<std::string> skipped;       // problems of the newer ones, to be said
};
// Reads and hashes the newest, and older ones as long as there is something wrong. An absent folder holds none.
Search find_newest_complete(const std::filesystem::path& folder);

// As above, for a run that was told to resume: throws InvalidInput, with what was skipped, when there is none.
FoundCheckpoint require_newest_complete(const std::filesystem::path& folder);

// Every checkpoint of a folder, newest first. Throws IoError.
std::vector<Inspection> inspect_folder(const std::filesystem::path& folder, Depth depth);

// Names of what killed saves left. Throws IoError.
std::vector<std::string> leftovers(const std::filesystem::path& folder);

// Removes what killed saves left; returns the names. Only when no save is under way in the folder.
std::vector<std::string> sweep_leftovers(const std::filesystem::path& folder);

// Removes all but the newest `keep` (>= 1) checkpoints; folders without a manifest or with a file missing or of
// another size don't count as kept and are left alone. Returns the names of those removed.
std::vector<std::string> keep_newest(const std::filesystem::path& folder, int64_t keep);

}  // namespace piper::train
