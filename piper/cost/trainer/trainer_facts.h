// What a trainer's rules are about: named numbers of a model, a strategy, a machine and the profile
// that prices them. A word ("full"), yes or no, and a count are all integers here.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace piper::cost {

struct TrainerProfile;

// Where facts are read. `machine` may be null: nothing is known of it then.
struct Known {
  const model::Model* model = nullptr;
  const strategy::Strategy* strategy = nullptr;
  const cluster::Cluster* machine = nullptr;
  const TrainerProfile* trainer = nullptr;
};

// When a search (piper/plan) knows a fact: with the question, or with one of the axes that it
// chooses one after the other. Each knows what those before it know.
//   kGiven      model, machine, profile; sequence, precision, capacity, modules of prediction
//   kShape      the mesh but vpp, the micro-batch, sequence parallelism
//   kSchedule   the order of micro-batches
//   kChunks     vpp
//   kLayers     recomputation and which layers a stage has
//   kLast       everything: exchanges, reductions, orders of a mixture layer
enum class Decided : uint8_t {
  kGiven,
  kShape,
  kSchedule,
  kChunks,
  kLayers,
  kZero,
  kOffload,
  kPlacement,
  kLast
};

struct Fact {
  const char* name;
  Decided decided;
  enum class Kind : uint8_t { kCount, kYesNo, kWord } kind;
  int64_t (*read)(const Known& known);
  std::vector<std::string> (*words)() = nullptr;  // of kWord, by value

  // A value in words: "4", "yes", "full".
  std::string text_of(int64_t value) const;
};

// Every fact, by name; the table stands in trainer_facts.cpp.
std::span<const Fact> facts();
// Null where there is none of that name.
const Fact* find_fact(std::string_view name);

// CUDA's compute capability of a device times ten (H100: 90, B200: 100), by the name that clusters
// give it; 0 where it has none or is not known.
int64_t compute_capability(std::string_view device);

}  // namespace piper::cost
