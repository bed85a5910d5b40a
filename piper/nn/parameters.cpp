#include <piper/base/error.h>
#include <piper/nn/init.h>
#include <piper/nn/parameters.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

namespace piper::nn {
namespace {

int64_t num_elements(const WeightSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

at::Tensor view_of(const at::Tensor& stored, const PieceSpec& piece) {
  return (piece.expert >= 0 ? stored.select(0, piece.expert) : stored)
      .narrow(0, piece.first, piece.count);
}

// A storage without memory keeps its size and its views, which are views of its next memory.
void give_back(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, tensor.device()));
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.storage().data() != nullptr || tensor.numel() == 0;
}

void take_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
}

void settle_weight(Weight& weight) {
  if (!has_memory(weight.gradient)) return;
  if (weight.beta() == 0) weight.gradient.zero_();
}

std::optional<TensorPart> part_of(const at::Tensor& view, const Cut& cut) {
  if (cut.whole == 0) return std::nullopt;
  std::vector<int64_t> shape = view.sizes().vec();
  const int64_t count = std::exchange(shape.at(static_cast<size_t>(cut.dim)), cut.whole);
  return part_along(std::move(shape), cut.dim, cut.first, count);
}

}  // namespace

Weight* ParameterStore::add(WeightSpec spec) {
  PIPER_CHECK(parameters_.empty(), "a parameter declared after allocate()");
  buffers_[{spec.layer, spec.sharding.replicas}].elements += num_elements(spec);
  if (spec.pieces.empty())
    spec.pieces = {{.name = spec.name, .count = spec.shape.front(), .cut = spec.cut}};
  specs_.push_back(std::move(spec));
  return &weights_.emplace_back();
}

void ParameterStore::allocate(at::ScalarType dtype, at::Device device,
                              const std::function<bool(int32_t, strategy::Axis)>& is_divided) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (auto& [key, buffer] : buffers_) {
    buffer.value = at::empty({buffer.elements}, options);
    buffer.gradient = at::empty({buffer.elements}, options.dtype(main_type(dtype)));
    if (is_divided && is_divided(key.first, key.second)) give_back(buffer.gradient);
  }
  std::map<Key, int64_t> offset;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Key key{specs_[i].layer, specs_[i].sharding.replicas};
    bind(specs_[i], weights_[i], buffers_[key], offset[key]);
    offset[key] += num_elements(specs_[i]);
  }
}

void ParameterStore::bind(const WeightSpec& spec, Weight& weight, Buffer& buffer, int64_t offset) {
  weight.value = buffer.value.narrow(0, offset, num_elements(spec)).view(spec.shape);
  if (spec.is_main && buffer.gradient.scalar_type() != buffer.value.scalar_type())
    weight.value = at::empty(spec.shape, buffer.gradient.options());
  weight.gradient = buffer.gradient.narrow(0, offset, num_elements(spec)).view(spec.shape);
  parameters_.push_back({.name = spec.name,
                         .value = weight.value,
                         .gradient = weight.gradient,
                         .sharding = spec.sharding,
                         .layer = spec.layer,
                         .offset = offset,
                         .decays = spec.decays});
  const size_t index = parameters_.size() - 1;
  for (const PieceSpec& piece : spec.pieces) {
    const at::Tensor value = view_of(weight.value, piece);
    pieces_.push_back(
        {piece.name, value, view_of(weight.gradient, piece), index, part_of(value, piece.cut)});
  }
}

void ParameterStore::initialise(uint64_t seed, double range) {
  for (size_t i = 0; i < specs_.size(); ++i)
    if (!specs_[i].decays) weights_[i].value.fill_(specs_[i].initial);
  for (const NamedPiece& piece : pieces_)
    if (specs_[piece.parameter].decays)
      fill_normal(piece.value, seed, piece.name, range, piece.part);
}

size_t ParameterStore::index_of(const Weight* weight) const {
  const auto found =
      std::ranges::find_if(weights_, [&](const Weight& of) { return &of == weight; });
  PIPER_CHECK(found != weights_.end(), "a parameter of another store");
  return static_cast<size_t>(found - weights_.begin());
}

void ParameterStore::rename(const Weight* weight, std::vector<PieceSpec> pieces) {
  const size_t index = index_of(weight);
  auto next = pieces.begin();
  for (NamedPiece& piece : pieces_) {
    if (piece.parameter != index) continue;
    PIPER_CHECK(next != pieces.end(), "as many parts as before");
    piece.name = (next++)->name;
  }
  PIPER_CHECK(next == pieces.end(), "as many parts as before");
  specs_[index].pieces = std::move(pieces);
}

void ParameterStore::reset() {
  for (Weight& weight : weights_) weight.untouched = true;
}

void ParameterStore::settle() {
  for (Weight& weight : weights_) settle_weight(weight);
}

at::Tensor ParameterStore::gradients(int32_t layer, strategy::Axis replicas) {
  const auto found = buffers_.find({layer, replicas});
  if (found == buffers_.end()) return {};
  // Alone: what has not had its backward yet is overwritten by it.
  for (size_t i = 0; i < specs_.size(); ++i)
    if (Key{specs_[i].layer, specs_[i].sharding.replicas} == found->first)
      settle_weight(weights_[i]);
  return found->second.gradient;
}

at::Tensor ParameterStore::hold_gradients(int32_t layer, strategy::Axis replicas) {
  const Key key{layer, replicas};
  const at::Tensor buffer = buffers_.at(key).gradient;
  if (has_memory(buffer)) return buffer;
  take_memory(buffer);
  for (size_t i = 0; i < specs_.size(); ++i)
    if (Key{specs_[i].layer, specs_[i].sharding.replicas} == key) weights_[i].untouched = true;
  return buffer;
}

void ParameterStore::release_gradients(int32_t layer, strategy::Axis replicas) {
  give_back(buffers_.at({layer, replicas}).gradient);
}

at::Tensor ParameterStore::hold_values(int32_t layer, strategy::Axis replicas) {
  const at::Tensor buffer = buffers_.at({layer, replicas}).value;
  if (!has_memory(buffer)) take_memory(buffer);
  return buffer;
}

void ParameterStore::release_values(int32_t layer, strategy::Axis replicas) {
  give_back(buffers_.at({layer, replicas}).value);
}

at::Tensor ParameterStore::values(int32_t layer, strategy::Axis replicas) const {
  const auto found = buffers_.find({layer, replicas});
  return found == buffers_.end() ? at::Tensor() : found->second.value;
}

void run_deferred(Tape& tape) {
  for (std::function<void()>& work : tape.deferred) {
    work();
    work = nullptr;
  }
  tape.deferred.clear();
}

void accumulate(const at::Tensor& gradient, double beta, const at::Tensor& a, const at::Tensor& b) {
  product_out(gradient, a.t(), b, beta);
}

void accumulate_rows(const at::Tensor& gradient, double beta, const at::Tensor& a) {
  at::Tensor out = gradient;
  if (beta == 0)
    at::sum_out(out, a, at::IntArrayRef{0}, /*keepdim=*/false, out.scalar_type());
  else
    out.add_(a.sum(at::IntArrayRef{0}, /*keepdim=*/false, out.scalar_type()));
}

}  // namespace piper::nn
