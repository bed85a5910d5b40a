// AdamW (Loshchilov and Hutter 2019, algorithm 2) with the arithmetic of torch.optim.AdamW, and
// gradient clipping.
//
//   w *= 1 - lr * decay;  m += (1 - b1) (g - m);  v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// Under ZeRO (Rajbhandari et al. 2020) a rank updates a share of its parameters and has the states
// of that share alone; its replicas update the rest.
//
// Parameters in bf16 have a master copy in fp32, which the update works on and which is then
// rounded into them.
//
// One pass over memory and no temporaries for contiguous CPU tensors; ATen operations elsewhere.
// The states may live with the host (ZeRO-Offload, Ren et al. 2021): of a layer they are then one
// block there, which visits the device while the layer is updated.
//
// Everything here is deterministic: the same bits for the same input, whatever the number of
// threads.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/kernels.h>
#include <piper/nn/named_tensor.h>
#include <piper/nn/stage.h>
#include <piper/optim/parameter_share.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace piper::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of parameters with `decays`
};

// The optimizer of one rank's parameters. One thread.
class AdamW {
 public:
  // Keeps handles of the parameters' tensors (they share storage) and allocates two moments of the
  // size and type of each gradient, and master copies.
  // `shares`: of these alone. `with_host`: gives so many bytes of the host's memory, where the
  // states live from now on; empty: they are where the parameters are.
  using HostBytes = std::function<at::Tensor(int64_t bytes)>;
  AdamW(const std::vector<nn::Parameter>& parameters, AdamWOptions options,
        const std::optional<std::vector<ParameterShare>>& shares = {},
        const HostBytes& with_host = {});

  // One update. Each gradient counts as gradient * gradient_scale (clipping), without being
  // changed. Where the states live with the host, the layers' updates make it up: step() says which
  // update they are of, and update_layer() then updates one layer's parameters, with its states in
  // `states`, a copy of host_states() that is to go back there.
  void step(double learning_rate, double gradient_scale = 1.0);
  void update_layer(int32_t layer, const at::Tensor& states);
  // Bytes, flat; none where this rank updates nothing of the layer.
  at::Tensor host_states(int32_t layer) const;

  int64_t num_steps() const;

  // Reads its gradients there from now on (ZeRO 2).
  void read_gradients(const executor::GradientShares& shares);

  // Its parameters are there from now on (ZeRO 3), but for those that are kept in another type than
  // their buffer. What they hold is the caller's.
  void update_weights(const executor::WeightShares& shares);

  // Whether it has the states of shares, as given.
  bool is_divided() const { return is_divided_; }

  // Makes the master copies anew: after the parameters were set from outside.
  void take_parameters();

  // All that must be saved and restored for a bit-equal resume: "first_moment/<name>",
  // "second_moment/<name>", "master/<name>" where there is one, "optimizer/num_steps". Loading
  // copies into these tensors. Where ranks divide a parameter, each has its own elements, with the
  // part of the (flat) parameter that they are.
  std::vector<nn::NamedTensor> state() const;

  // What elements [begin, end) of a parameter take along when they change their rank: the master
  // copy (the parameter itself where it has none) and both moments, flat, to be read and written in
  // place. `parameter`: its index among those given. Requires the states of these elements
  // (PIPER_CHECK).
  std::vector<at::Tensor> moving_state(const ParameterShare& elements) const;
  // Rounds these elements of the parameter again from the master copy, where there is one.
  void round_again(const ParameterShare& elements);

 private:
  struct Slot {
    nn::Parameter parameter;
    at::Tensor first, second;
    at::Tensor master;     // undefined: the parameter is its own
    ParameterShare share;  // of the parameter among those given
    std::optional<nn::TensorPart> part = {};
    int64_t offset = 0;  // of its states in the layer's with the host, in bytes
  };
  struct States {
    at::Tensor first, second, master;
  };
  const Slot& slot_with(const ParameterShare& elements) const;

  void update(Slot& slot, const States& states) const;
  static void update_master(Slot& slot, const States& states,
                            const nn::kernels::AdamWScalars<float>& scalars);
  // Returns a slot's states, as views of its layer's block.
  static States states_in(const at::Tensor& block, const Slot& slot);

  AdamWOptions options_;
  std::map<int32_t, at::Tensor> with_host_;        // by layer
  double learning_rate_ = 0, gradient_scale_ = 1;  // of the update under way
  std::vector<Slot> slots_;
  at::Tensor num_steps_;  // int64, one element
  bool is_divided_ = false;
};

// Sum of squared gradients, of the elements in `shares`, accumulated in double in a fixed order.
// Infinite or NaN when one of them is. The host waits once for a device. Replicas take a share
// each, so that over the mesh every element counts once.
double sum_of_squares(const std::vector<nn::Parameter>& parameters,
                      const std::vector<ParameterShare>& shares,
                      const executor::GradientShares& gradients = {});

// The factor that brings a gradient of norm `norm` down to `max_norm`
// (torch.nn.utils.clip_grad_norm_): at most 1; 1 when max_norm is 0 (no clipping).
double clip_scale(double norm, double max_norm);

}  // namespace piper::optim
