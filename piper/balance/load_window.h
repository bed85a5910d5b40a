// The experts' loads of the last steps, layer by layer: one step's counts are noise, so decisions
// are taken from a window's sums. Every rank of a run sees the same counts, so their windows are
// equal.
#pragma once

#include <piper/balance/rank_load.h>
#include <piper/base/json_fwd.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace piper::balance {

using LayerLoads = std::map<int32_t, Loads>;  // by global layer

// Not thread-safe.
class LoadWindow {
 public:
  // Keeps the newest `capacity` steps (at least 1).
  explicit LoadWindow(int64_t capacity);

  // Every step has the same layers and experts (PIPER_CHECK).
  void add(const LayerLoads& step);
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  bool is_full() const { return num_steps() == capacity_; }

  LayerLoads sums() const { return sums(0, steps_.size()); }
  // These sum the older and the newer half. What a plan made from the one is worth in the other
  // says how much of the load is trend and how much noise.
  LayerLoads older() const { return sums(0, steps_.size() / 2); }
  LayerLoads newer() const { return sums(steps_.size() / 2, steps_.size()); }

  // {"<layer>": [[count, ...] by step]}, so that a run that is resumed decides as one that was not
  // interrupted. read() replaces the steps; throws InvalidInput (one line) for what to_json() of a
  // window with these layers and experts did not write.
  Json to_json() const;
  void read(const Json& json, const std::map<int32_t, int64_t>& num_experts,
            const std::string& source);

 private:
  LayerLoads sums(size_t first, size_t end) const;

  int64_t capacity_;
  std::deque<LayerLoads> steps_;
};

// How well the last steps predict the next: the part of the rows, 0 to 1, that the shares of
// `past` put on the right expert in `next` (1 - total variation distance). 1 where either is empty.
double overlap(const Loads& past, const Loads& next);

}  // namespace piper::balance
