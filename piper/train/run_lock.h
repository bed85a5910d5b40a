// One run at a time in a folder: held while the run lives, and gone with its process, however that
// ends.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace piper::train {

// Move-only. Not thread-safe.
//
// RUN/lock holds the words "process 4711 on host". It is opened without following a symbolic link,
// and a file that holds anything else is not Piper's: it is neither locked nor changed.
//
// A file system may have no locks. There is no second way that is sound without them: a file made
// by O_EXCL with host and process id cannot be taken over from a process that was killed on another
// host (nobody there can be asked whether it lives), and taking it over after a time without a sign
// of life has a window in which two runs both win. So nothing is held then, and warning() says it.
class RunLock {
 public:
  using Flock = std::function<int(int file, int operation)>;  // flock(2); tests put in others

  // Throws InvalidInput naming the process and host that hold the folder, or what is wrong with
  // RUN/lock (a link, no regular file, not Piper's); IoError where the file cannot be made.
  explicit RunLock(const std::filesystem::path& folder, Flock flock = system_flock());
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

  // One line for the user when nothing is held; "" = the lock is held.
  const std::string& warning() const { return warning_; }

  static Flock system_flock();

  // Holds a folder as well that the run writes into, by whatever name it is reached: two runs whose
  // names lead to one folder of checkpoints would remove each other's. An absent folder is not
  // held. Throws InvalidInput where another run holds it.
  void hold(const std::filesystem::path& folder);
  // What no longer stands where it was when it was locked; "" = all does.
  std::string lost() const;

 private:
  struct Held {
    std::filesystem::path folder;
    int file = -1;
  };

  std::filesystem::path path_;
  Flock flock_;
  std::vector<Held> folders_;
  int file_ = -1;
  std::string warning_;
};

}  // namespace piper::train
