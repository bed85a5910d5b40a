// The folder that holds the checkpoints of a run.
//
//   <folder>/step-00000120/             a checkpoint (manifest.h)
//   <folder>/step-00000140.tmp-4711-0/  a leftover: a save or a removal that was interrupted
//   <folder>/step-00000130.damaged/     set aside; -2, -3, ... when that name is taken
//   <folder>/step-00000110.foreign/     files of others that lay in a checkpoint which was removed
//
// Whatever is removed here is removed by the names that Piper gives to its files, never a whole
// tree; entries that are symbolic links are left alone. A checkpoint that was set aside counts as
// none, and only remove_checkpoints() (--fresh) removes it.
//
// Thread safety: none; one process at a time changes a folder (run_lock.h).
#pragma once

#include <piper/checkpoint/manifest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace piper::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path path;
  Manifest manifest;
};
struct Search {
  std::optional<FoundCheckpoint> newest;  // that is complete and undamaged
  std::vector<Inspection> damaged;        // the newer ones, newest first
};
// Reads and hashes the newest, and older ones as long as there is something wrong. An absent folder
// holds none. Throws IoError where one cannot be read now, OtherVersion where another Piper wrote
// it: neither is damage, and nothing is passed over for it.
Search find_newest_complete(const std::filesystem::path& folder);

// Every problem of those passed over.
std::vector<std::string> problems(const Search& search);

// As above, for a run that was told to resume: throws InvalidInput, with what was passed over and
// what has been set aside, when there is none.
FoundCheckpoint require_newest_complete(const std::filesystem::path& folder);

// Every checkpoint of a folder, newest first. Throws IoError.
std::vector<Inspection> inspect_folder(const std::filesystem::path& folder, Depth depth);

// Names, newest first, of what looks like a checkpoint: such a folder, or a link to one, with at
// least one of Piper's files in it. Throws IoError.
std::vector<std::string> checkpoint_names(const std::filesystem::path& folder);
// Names of what killed saves left, and of what was set aside. Throws IoError.
std::vector<std::string> leftovers(const std::filesystem::path& folder);
std::vector<std::string> damaged_names(const std::filesystem::path& folder);

// Removes what killed saves left; returns the names. Only when no save is under way in the folder.
// Throws IoError.
std::vector<std::string> sweep_leftovers(const std::filesystem::path& folder);

// Renames a damaged checkpoint. Returns what to tell the user, one line; "" when it is a symbolic
// link and stays as it is. Throws IoError.
std::string set_aside(const Inspection& damaged);

struct Rotation {
  std::vector<std::string> removed;  // names
  std::vector<std::string> notes;    // what to tell the user, a line each
  int64_t read_bytes = 0;            // that were read back and hashed
};
// Removes all but the newest `keep` (>= 1) checkpoints, after each of those was read back from the
// disk and agreed with its manifest. One that does not is set aside and counts as none, so that
// with few good ones nothing is removed. When there are no more than `keep`, nothing is read.
// Throws IoError.
Rotation keep_newest(const std::filesystem::path& folder, int64_t keep);

// Throws InvalidInput when `folder` is a symbolic link, which remove_checkpoints() does not follow.
void require_removable(const std::filesystem::path& folder);

// Removes every checkpoint, leftover and what was set aside. Returns what to tell the user of the
// files of others that stay. Throws InvalidInput when `folder` is a symbolic link; IoError.
std::vector<std::string> remove_checkpoints(const std::filesystem::path& folder);

}  // namespace piper::checkpoint
