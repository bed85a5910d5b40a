// A rank's parameters and their gradients: one contiguous buffer of each per layer and axis over
// which gradients are summed, so that a reduction or an optimizer works on one piece of memory.
// Matrices that are multiplied together are stored together (q, k and v; gate and up; all experts
// of a layer); NamedPiece shows the parts under their Hugging Face names.
//
// Gradients are never zeroed in advance: reset() marks them untouched, and the first backward of a
// step overwrites (beta = 0) where later ones add.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/stage.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace piper::nn {

// One stored parameter: views of the buffers.
struct Weight {
  at::Tensor value;
  at::Tensor gradient;
  bool untouched = true;  // since reset()
  // What the next contribution multiplies the gradient by: 0 for the first of a step, then 1.
  double beta() { return std::exchange(untouched, false) ? 0.0 : 1.0; }
};

// Where ranks divide a Hugging Face tensor along a dimension: what is stored begins at `first` of
// `whole`. whole 0: nobody divides it.
struct Cut {
  int64_t dim = 0, first = 0, whole = 0;
};

// Which part of a stored parameter a Hugging Face tensor is: rows [first, first + count) of expert
// `expert` (-1: of the parameter itself).
struct PieceSpec {
  std::string name;
  int64_t expert = -1;
  int64_t first = 0;
  int64_t count = 0;
  Cut cut = {};
};

struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;
  Sharding sharding = {};
  int32_t layer = -1;
  bool decays = true;  // false: a norm or a bias, which starts as `initial`
  double initial = 1;
  // kept in main_type(): nothing multiplies it, and small steps must not be rounded away
  bool is_main = false;
  Cut cut = {};                   // of the parameter itself, without pieces
  std::vector<PieceSpec> pieces;  // empty: the parameter itself under its own name
};

class ParameterStore {
 public:
  // Declares a parameter. The pointer stays valid; its tensors exist after allocate().
  Weight* add(WeightSpec spec);
  // Makes the buffers, in the order of add() within each. Gradients start untouched; those of
  // a layer and axis that `is_divided` names (none when empty) have no memory until
  // hold_gradients().
  void allocate(at::ScalarType dtype, at::Device device,
                const std::function<bool(int32_t, strategy::Axis)>& is_divided = {});
  // Initial values (init.h): normal(0, range), ones for what does not decay.
  void initialise(uint64_t seed, double range);

  // Other names for the parts of a parameter, which stay where they are. As many as before.
  void rename(const Weight* weight, std::vector<PieceSpec> pieces);
  // In parameters().
  size_t index_of(const Weight* weight) const;

  void reset();
  // Zeroes the gradients that no backward has touched since reset(), so that they can be read.
  void settle();
  // Undefined when the rank holds none. Settled.
  at::Tensor gradients(int32_t layer, strategy::Axis replicas);
  // Stage::hold_gradients() and release_gradients(), of a divided axis.
  at::Tensor hold_gradients(int32_t layer, strategy::Axis replicas);
  void release_gradients(int32_t layer, strategy::Axis replicas);
  // Stage::hold_weights() and release_weights(), of any buffer.
  at::Tensor hold_values(int32_t layer, strategy::Axis replicas);
  void release_values(int32_t layer, strategy::Axis replicas);
  // The values in the same order. Undefined when the rank holds none.
  at::Tensor values(int32_t layer, strategy::Axis replicas) const;
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<NamedPiece>& pieces() const { return pieces_; }

 private:
  using Key = std::pair<int32_t, strategy::Axis>;
  struct Buffer {
    at::Tensor value, gradient;
    int64_t elements = 0;
  };
  void bind(const WeightSpec& spec, Weight& weight, Buffer& buffer, int64_t offset);

  std::vector<WeightSpec> specs_;
  std::deque<Weight> weights_;
  std::map<Key, Buffer> buffers_;
  std::vector<Parameter> parameters_;
  std::vector<NamedPiece> pieces_;
};

// Runs what a backward in parts has left to its weights' part, in order, each thing's memory freed
// behind it.
void run_deferred(Tape& tape);

// gradient := beta * gradient + a^T b, for the weight's rows [first, first + a's columns) or all of
// it.
void accumulate(const at::Tensor& gradient, double beta, const at::Tensor& a, const at::Tensor& b);
// gradient := beta * gradient + the sum of a's rows.
void accumulate_rows(const at::Tensor& gradient, double beta, const at::Tensor& a);

}  // namespace piper::nn
