// What measured curves were asked outside of their points, where only the nearest edge answers.
//
// Not outside is what is known all the same: more bytes than the last point of a curve over a
// working set ("element_wise", "copy") whose last two rates agree within 10 % (the bandwidth of
// memory is reached), fewer than a first point that takes less than a microsecond, and a message
// below the smallest where that is latency alone.
#pragma once

#include <piper/base/json_fwd.h>

#include <string>
#include <utility>
#include <vector>

namespace piper::cluster {

struct Outside {
  std::string curve;                           // "compute.bf16.gemm", "all-to-all"
  std::string axis;                            // "m"
  double asked_low = 0, asked_high = 0;        // the smallest and the largest coordinate asked
  double measured_low = 0, measured_high = 0;  // the ends of the measured range
};

// One curve and axis once, in the order in which they first left their range. Not thread-safe.
class Watch {
 public:
  // Notes `asked` when it lies outside of [low, high].
  void note(const std::string& curve, const std::string& axis, double asked, double low,
            double high);
  // Notes nothing when no range is known for the link.
  void note_link(const std::string& link, double bytes);
  void set_range(const std::string& link, double low, double high);
  // Forgets what was noted since outside() was `noted`.
  void restart_from(std::vector<Outside> noted) { outside_ = std::move(noted); }
  const std::vector<Outside>& outside() const { return outside_; }

 private:
  struct Range {
    std::string link;
    double low = 0, high = 0;
  };
  std::vector<Outside> outside_;
  std::vector<Range> links_;
};

// One object an entry: curve, axis, asked_low, asked_high, measured_low, measured_high.
Json to_json(const std::vector<Outside>& outside);
// "compute.fp32.gemm: m 4096 (measured 8 to 2048)"; several are joined by "; ".
std::string to_text(const std::vector<Outside>& outside);

}  // namespace piper::cluster
