// What a checkpoint says of itself. The folder that holds those of a run: checkpoint_folder.h.
//
//   step-00000120/                    complete: put in place by one rename, never changed in place
//     rank-00000.safetensors ...      a shard a rank
//     manifest.json                   model, mesh, state of the run; size and SHA-256 of every
//                                     shard, a hash of every tensor
//     manifest.json.sha256            of the manifest, as `sha256sum -c` reads it
#pragma once

#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/file_writer.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace piper::checkpoint {

// What was saved, and how it was laid out. To resume, the model must be the same; any mesh can.
struct CheckpointIdentity {
  std::string model;        // name, for messages
  std::string fingerprint;  // model_fingerprint.h
  strategy::Mesh mesh;
  std::vector<int64_t> layers_per_stage;
  bool operator==(const CheckpointIdentity&) const = default;
};

// The position of the run.
struct TrainState {
  int64_t step = 0;           // steps done
  uint64_t seed = 0;          // of initial weights and of data; the step is the data's position
  int64_t target_tokens = 0;  // seen so far, all ranks
  int64_t skipped_steps = 0;  // updates skipped because loss or gradient was not finite
  // How many of the last steps up to `step` were skipped. Manifests of an earlier Piper lack it: 0.
  int64_t skipped_in_a_row = 0;
  std::string text_fingerprint;  // Text::fingerprint() of the training text
  Json extra = Json::object();   // the loop's own
};

struct Manifest {
  CheckpointIdentity identity;
  TrainState state;
  std::vector<files::FileRecord> files;  // by rank
};

std::string checkpoint_name(int64_t step);  // "step-00000120"
std::string shard_name(int64_t rank);       // "rank-00003.safetensors"

Json to_json(const files::FileRecord& file);
files::FileRecord parse_file_record(const Json& json,
                                    const std::string& source);  // throws InvalidInput
Json to_json(const Manifest& manifest);
Manifest parse_manifest(const Json& json,
                        const std::string& source);  // throws InvalidInput with all problems

// Writes manifest.json and its hash into a folder and syncs both files and the folder. Throws
// IoError.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest,
                    const files::Disk& disk = files::real_disk());

// How files are compared with the manifest: by their sizes alone; read and hashed; read back from
// the disk, not from what the system holds of them in memory (sha256.h), and hashed.
enum class Depth { kSizes, kHashes, kStorage };

// Why a checkpoint cannot be judged: it is neither sound nor damaged as far as anybody can tell.
enum class Obstacle {
  kNone,
  kUnreadable,   // now: may_pass() of cause.h
  kOtherVersion  // another Piper's, newer or older
};

struct Inspection {
  std::filesystem::path path;
  std::optional<Manifest> manifest;  // none: it cannot be read
  std::vector<std::string>
      problems;  // a line for every file that is missing or damaged; empty = complete
  Obstacle obstacle = Obstacle::kNone;  // of the first file that has one; `problems` says it too
};

// A manifest of another version of the format.
class OtherVersion : public InvalidInput {
  using InvalidInput::InvalidInput;
};

// The manifest of a checkpoint, checked against its own hash. Throws InvalidInput, OtherVersion,
// IoError.
Manifest read_manifest(const std::filesystem::path& checkpoint);

// Compares a checkpoint with its manifest. Throws InvalidInput when there is no such folder.
Inspection inspect_checkpoint(const std::filesystem::path& checkpoint, Depth depth);

// Why this run cannot go on from a checkpoint: it is of another model. One line each, empty = it
// can.
std::vector<std::string> differences(const Manifest& manifest, const CheckpointIdentity& run,
                                     const std::filesystem::path& checkpoint);

Json mesh_to_json(const strategy::Mesh& mesh);
std::string describe(const strategy::Mesh& mesh);  // "pp 2 x ep 2 x dp 2"

// "resharding from pp 2 x ep 2 x dp 2 to pp 1 x ep 1 x dp 1"; "" when both lay the model out alike.
std::string resharding(const CheckpointIdentity& saved, const CheckpointIdentity& run);

}  // namespace piper::checkpoint
