// A secret for the processes of one run on one host, where their launcher tells them none: a file
// that only their user may read, made by whichever comes first.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace piper::comm {

struct LocalSecret {
  std::string text;            // 64 hexadecimal digits, random
  std::filesystem::path file;  // to be removed when every process has read it
  // Held open and locked: as long as one process of the run does, the file is no leftover.
  std::shared_ptr<const void> held;
};

// `run` tells the run from all others of this user on this host, and is the same in each of its
// processes. The folders that are tried: $XDG_RUNTIME_DIR, /dev/shm, /tmp. nullopt where none can
// hold such a file; a file of another user, or one that others may read, is not believed. Those of
// runs that were killed, which no process holds, are removed first, one of this name too.
std::optional<LocalSecret> local_secret(const std::string& run);

}  // namespace piper::comm
