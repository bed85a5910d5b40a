#include <c10/core/GradMode.h>
#include <piper/base/error.h>
#include <piper/nn/cuda/stream.h>
#include <piper/nn/kernels.h>
#include <piper/nn/tensor_ops.h>
#include <piper/optim/optimizer.h>

#include <algorithm>
#include <cmath>

namespace piper::optim {
namespace {

using nn::kernels::AdamWScalars;

template <class T>
AdamWScalars<T> scalars(const AdamWOptions& o, bool decays, double learning_rate,
                        double gradient_scale, int64_t num_steps) {
  const auto t = static_cast<double>(num_steps);
  return {.keep = static_cast<T>(1 - (decays ? learning_rate * o.weight_decay : 0)),
          .one_minus_beta1 = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .one_minus_beta2 = static_cast<T>(1 - o.beta2),
          .step_size = static_cast<T>(learning_rate / (1 - std::pow(o.beta1, t))),
          .inverse_root_correction2 = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
          .epsilon = static_cast<T>(o.epsilon),
          .gradient_scale = static_cast<T>(gradient_scale)};
}

// kernels::adamw with ATen operations: other devices, other dtypes, strided views.
void update_any(at::Tensor w, const at::Tensor& gradient, at::Tensor m, at::Tensor v,
                const AdamWScalars<double>& s) {
  const at::Tensor g = gradient * s.gradient_scale;
  m.add_(g - m, s.one_minus_beta1);
  v.mul_(s.beta2).addcmul_(g, g, s.one_minus_beta2);
  w.mul_(s.keep).addcdiv_(m, (v.sqrt() * s.inverse_root_correction2).add_(s.epsilon), -s.step_size);
}

bool is_plain(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.is_contiguous() && nn::has_kernels(tensor) && tensor.scalar_type() == dtype;
}

// The same of tensors that a CUDA device's kernel updates.
bool is_plain_on_cuda(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.is_contiguous() && nn::has_cuda_kernels(tensor) && tensor.scalar_type() == dtype;
}

template <class T>
bool update_on_cuda(const at::Tensor& w, const at::Tensor& g, const at::Tensor& m,
                    const at::Tensor& v, const AdamWScalars<T>& s) {
  constexpr at::ScalarType dtype = c10::CppTypeToScalarType<T>::value;
  if (!is_plain_on_cuda(w, dtype) || !is_plain_on_cuda(g, dtype)) return false;
  nn::cuda::adamw(nn::cuda::Place(w).stream(), w.data_ptr<T>(), g.const_data_ptr<T>(),
                  m.data_ptr<T>(), v.data_ptr<T>(), w.numel(), s);
  return true;
}

bool update_rounded_on_cuda(const at::Tensor& master, const at::Tensor& g, const at::Tensor& m,
                            const at::Tensor& v, const at::Tensor& rounded,
                            const AdamWScalars<float>& s) {
  if (!is_plain_on_cuda(rounded, at::kBFloat16) || !is_plain_on_cuda(g, at::kFloat)) return false;
  nn::cuda::adamw_rounded(nn::cuda::Place(g).stream(), master.data_ptr<float>(),
                          g.const_data_ptr<float>(), m.data_ptr<float>(), v.data_ptr<float>(),
                          rounded.data_ptr<c10::BFloat16>(), g.numel(), s);
  return true;
}

// The kernel adds in fp64 in one pass; at:: would make a copy in fp64 first.
nn::Amount squares_on_cuda(const at::Tensor& x) {
  const at::Tensor parts = at::empty({nn::cuda::kSquareParts}, x.options().dtype(at::kDouble));
  nn::cuda::sum_of_squares(nn::cuda::Place(x).stream(), x.const_data_ptr<float>(), x.numel(),
                           parts.data_ptr<double>());
  return nn::Amount(parts.sum());
}

nn::Amount squares_of(const at::Tensor& x) {
  if (is_plain(x, at::kFloat))
    return nn::kernels::sum_of_squares(x.const_data_ptr<float>(), x.numel());
  if (is_plain(x, at::kDouble))
    return nn::kernels::sum_of_squares(x.const_data_ptr<double>(), x.numel());
  if (x.numel() > 0 && is_plain_on_cuda(x, at::kFloat)) return squares_on_cuda(x);
  return nn::Amount(x.to(at::kDouble).square().sum());
}

bool has_master(const nn::Parameter& parameter) {
  return parameter.value.scalar_type() == at::kBFloat16;
}

}  // namespace

AdamW::AdamW(const std::vector<nn::Parameter>& parameters, AdamWOptions options,
             const std::optional<std::vector<ParameterShare>>& shares, const HostBytes& with_host)
    : options_(options), num_steps_(at::zeros({1}, at::kLong)), is_divided_(shares.has_value()) {
  for (const ParameterShare& share : shares ? *shares : all_shares(parameters)) {
    const nn::Parameter& whole = parameters.at(share.parameter);
    PIPER_CHECK(whole.value.sizes() == whole.gradient.sizes(), whole.name);
    const int64_t elements = whole.value.numel();
    const bool is_whole = share.end - share.begin == elements;
    const nn::Parameter parameter = is_whole ? whole : restricted(parameters, share);
    slots_.push_back({.parameter = parameter, .share = share});
    if (!is_whole)
      slots_.back().part = nn::elements_of(nn::whole_tensor({elements}), share.begin, share.end);
  }
  // Each layer needs so many bytes of the host's memory, for its slots' states one after the other.
  std::map<int32_t, int64_t> bytes;
  if (with_host)
    for (Slot& slot : slots_) {
      int64_t& end = bytes[slot.parameter.layer];
      slot.offset = end;
      end += (has_master(slot.parameter) ? 3 : 2) *
             static_cast<int64_t>(slot.parameter.gradient.numel() *
                                  slot.parameter.gradient.element_size());
    }
  for (const auto& [layer, count] : bytes) with_host_[layer] = with_host(count).zero_();
  for (Slot& slot : slots_) {
    const auto zeros = [&] {
      return at::zeros_like(slot.parameter.gradient, at::MemoryFormat::Contiguous);
    };
    States states;
    if (with_host)
      states = states_in(with_host_.at(slot.parameter.layer), slot);
    else
      states = {zeros(), zeros(), has_master(slot.parameter) ? zeros() : at::Tensor()};
    slot.first = states.first;
    slot.second = states.second;
    slot.master = states.master;
  }
  take_parameters();
}

AdamW::States AdamW::states_in(const at::Tensor& block, const Slot& slot) {
  const at::Tensor& like = slot.parameter.gradient;
  const auto bytes = static_cast<int64_t>(like.numel() * like.element_size());
  int64_t next = slot.offset;
  const auto state = [&] {
    const at::Tensor of = block.narrow(0, next, bytes).view(like.scalar_type());
    next += bytes;
    return of.view(like.sizes());
  };
  States states;
  states.first = state();
  states.second = state();
  if (has_master(slot.parameter)) states.master = state();
  return states;
}

void AdamW::read_gradients(const executor::GradientShares& shares) {
  for (Slot& slot : slots_) {
    const at::Tensor& w = slot.parameter.value;
    slot.parameter.gradient = gradient_of(slot.parameter, 0, w.numel(), shares).view(w.sizes());
  }
}

void AdamW::update_weights(const executor::WeightShares& shares) {
  for (Slot& slot : slots_) {
    nn::Parameter& p = slot.parameter;
    const executor::WeightShares::Key key{p.layer, p.sharding.replicas};
    if (!shares.contains(key)) continue;
    const int64_t elements = p.value.numel();
    const at::Tensor own = shares.own(key, p.offset, p.offset + elements).weights;
    if (own.scalar_type() != p.value.scalar_type()) continue;
    PIPER_CHECK(own.numel() == elements, "weights of another rank's share: " + p.name);
    p.value = own.view(p.value.sizes());
  }
}

void AdamW::take_parameters() {
  for (Slot& slot : slots_)
    if (slot.master.defined()) slot.master.copy_(slot.parameter.value);
}

int64_t AdamW::num_steps() const { return *num_steps_.const_data_ptr<int64_t>(); }

void AdamW::step(double learning_rate, double gradient_scale) {
  ++*num_steps_.data_ptr<int64_t>();
  learning_rate_ = learning_rate;
  gradient_scale_ = gradient_scale;
  if (!with_host_.empty()) return;
  for (Slot& slot : slots_) update(slot, {slot.first, slot.second, slot.master});
}

void AdamW::update_layer(int32_t layer, const at::Tensor& states) {
  PIPER_CHECK(states.numel() == host_states(layer).numel(), "other states than the layer's");
  for (Slot& slot : slots_)
    if (slot.parameter.layer == layer) update(slot, states_in(states, slot));
}

at::Tensor AdamW::host_states(int32_t layer) const {
  const auto found = with_host_.find(layer);
  return found != with_host_.end() ? found->second : at::empty({0}, at::kByte);
}

void AdamW::update(Slot& slot, const States& states) const {
  const c10::NoGradGuard no_grad;
  const int64_t t = num_steps();
  const at::Tensor &w = slot.parameter.value, &g = slot.parameter.gradient;
  const auto scalars_of = [&]<class T>(T) {
    return scalars<T>(options_, slot.parameter.decays, learning_rate_, gradient_scale_, t);
  };
  const auto update_own = [&]<class T>(T type) {
    nn::kernels::adamw(w.data_ptr<T>(), g.const_data_ptr<T>(), states.first.data_ptr<T>(),
                       states.second.data_ptr<T>(), w.numel(), scalars_of(type));
  };
  if (states.master.defined())
    update_master(slot, states, scalars_of(float{}));
  else if (is_plain(w, at::kFloat) && is_plain(g, at::kFloat))
    update_own(float{});
  else if (is_plain(w, at::kDouble) && is_plain(g, at::kDouble))
    update_own(double{});
  else if (!update_on_cuda(w, g, states.first, states.second, scalars_of(float{})) &&
           !update_on_cuda(w, g, states.first, states.second, scalars_of(double{})))
    update_any(w, g, states.first, states.second, scalars_of(double{}));
}

void AdamW::update_master(Slot& slot, const States& states, const AdamWScalars<float>& s) {
  const at::Tensor &w = slot.parameter.value, &g = slot.parameter.gradient;
  if (is_plain(w, at::kBFloat16) && is_plain(g, at::kFloat)) {
    nn::kernels::adamw_rounded(states.master.data_ptr<float>(), g.const_data_ptr<float>(),
                               states.first.data_ptr<float>(), states.second.data_ptr<float>(),
                               slot.parameter.value.data_ptr<c10::BFloat16>(), w.numel(), s);
    return;
  }
  if (update_rounded_on_cuda(states.master, g, states.first, states.second, w, s)) return;
  update_any(states.master, g, states.first, states.second,
             {s.keep, s.one_minus_beta1, s.beta2, s.one_minus_beta2, s.step_size,
              s.inverse_root_correction2, s.epsilon, s.gradient_scale});
  slot.parameter.value.copy_(states.master);
}

std::vector<nn::NamedTensor> AdamW::state() const {
  std::vector<nn::NamedTensor> tensors;
  for (const Slot& slot : slots_) {
    const auto add = [&](const char* kind, const at::Tensor& value) {
      tensors.push_back({kind + slot.parameter.name, value, slot.part});
    };
    add("first_moment/", slot.first);
    add("second_moment/", slot.second);
    if (slot.master.defined()) add("master/", slot.master);
  }
  tensors.push_back({"optimizer/num_steps", num_steps_});
  return tensors;
}

const AdamW::Slot& AdamW::slot_with(const ParameterShare& elements) const {
  const auto found = std::ranges::find_if(slots_, [&](const Slot& slot) {
    return slot.share.parameter == elements.parameter && slot.share.begin <= elements.begin &&
           elements.end <= slot.share.end;
  });
  PIPER_CHECK(found != slots_.end(), "elements whose states another replica has");
  return *found;
}

std::vector<at::Tensor> AdamW::moving_state(const ParameterShare& elements) const {
  const Slot& slot = slot_with(elements);
  std::vector<at::Tensor> state{slot.master.defined() ? slot.master : slot.parameter.value,
                                slot.first, slot.second};
  for (at::Tensor& of : state)
    of = of.view({-1}).narrow(0, elements.begin - slot.share.begin, elements.end - elements.begin);
  return state;
}

void AdamW::round_again(const ParameterShare& elements) {
  const c10::NoGradGuard no_grad;
  const Slot& slot = slot_with(elements);
  if (!slot.master.defined()) return;
  const int64_t begin = elements.begin - slot.share.begin, size = elements.end - elements.begin;
  slot.parameter.value.view({-1})
      .narrow(0, begin, size)
      .copy_(slot.master.view({-1}).narrow(0, begin, size));
}

double sum_of_squares(const std::vector<nn::Parameter>& parameters,
                      const std::vector<ParameterShare>& shares,
                      const executor::GradientShares& gradients) {
  nn::Amount total;
  for (const ParameterShare& share : shares)
    total +=
        squares_of(gradient_of(parameters.at(share.parameter), share.begin, share.end, gradients));
  return total.read();
}

double clip_scale(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace piper::optim
