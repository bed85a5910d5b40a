// The partial file of a profile: one line a measured point, written as it is measured, so that an
// interrupted profile goes on where it stopped.
//
//   {"piper_profile": 1, "measured_with": {...}}            what must be equal for points to be taken over
//   {"curve": "gemm.fp32", "at": [8, 32, 32], "seconds": ..., ...}
//
// A line cut off by a crash ends the file: it and what follows is measured again. Not thread-safe.
#pragma once

#include <piper/base/json.h>
#include <piper/cluster/curve.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::profile {

// By curve and place on it.
using MeasuredPoints = std::map<std::pair<std::string, std::vector<double>>, cluster::Timing>;

// The points of such a file's text, up to the first line that is none. `name` is the file's, for
// messages. Throws InvalidInput as ProfileJournal does.
MeasuredPoints read_points(const std::string& text, const Json& measured_with,
                           const std::string& name);
// The text of a file that holds them.
std::string to_text(const MeasuredPoints& points, const Json& measured_with);

class ProfileJournal {
 public:
  // Keeps nothing.
  ProfileJournal() = default;
  // Reads `path` if it is there, unless it begins `fresh`, and goes on with it at the first point
  // that is added; until then the file stays as it is. Throws InvalidInput when it was made with
  // something else, naming the first difference, or is no such file.
  ProfileJournal(std::filesystem::path path, Json measured_with, bool fresh = false);

  std::optional<cluster::Timing> find(const std::string& curve,
                                      const std::vector<double>& at) const;
  // Throws IoError when the file cannot be written; InvalidInput where it is a link.
  void add(const std::string& curve, const std::vector<double>& at, const cluster::Timing& timing);
  int64_t num_restored() const { return num_restored_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  Json measured_with_;
  std::unique_ptr<std::FILE, Close> out_;  // from the first point on
  MeasuredPoints points_;
  int64_t num_restored_ = 0;
};

}  // namespace piper::profile
