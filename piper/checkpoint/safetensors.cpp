#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/checkpoint/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

namespace piper::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::array<std::pair<DType, at::ScalarType>, 7> kTypes = {{{DType::kF64, at::kDouble},
                                                                     {DType::kF32, at::kFloat},
                                                                     {DType::kF16, at::kHalf},
                                                                     {DType::kBF16, at::kBFloat16},
                                                                     {DType::kI64, at::kLong},
                                                                     {DType::kI32, at::kInt},
                                                                     {DType::kU8, at::kByte}}};

}  // namespace

at::ScalarType scalar_type(DType dtype) { return kTypes[static_cast<size_t>(dtype)].second; }

DType dtype_of(const nn::NamedTensor& tensor) {
  for (const auto& [dtype, scalar] : kTypes)
    if (scalar == tensor.value.scalar_type()) return dtype;
  throw InvalidInput(
      fmt::format("tensor '{}' is of type {}; allowed: F64, F32, F16, BF16, I64, I32, U8",
                  tensor.name, at::toString(tensor.value.scalar_type())));
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : file_(std::make_unique<const FileReader>(std::move(path))) {
  const int64_t size = file_->size();
  std::string text(static_cast<size_t>(std::min<int64_t>(size, 8)), '\0');
  file_->read(0, text.data(), std::ssize(text));
  const int64_t length = parse_header_length(text, size, file_->path().string());
  text.resize(static_cast<size_t>(length));
  file_->read(8, text.data(), length);
  header_ = parse_header(text, size - 8 - length, file_->path().string());
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const TensorEntry& tensor, at::Tensor out, int64_t first_element) const {
  const c10::NoGradGuard no_grad;
  const int64_t offset =
      header_.data_begin + tensor.begin + first_element * size_bytes(tensor.dtype);
  const int64_t size = out.numel() * size_bytes(tensor.dtype);
  PIPER_CHECK(first_element >= 0 && offset + size <= header_.data_begin + tensor.end, tensor.name);
  const at::ScalarType type = scalar_type(tensor.dtype);
  if (at::isFloatingType(type) != out.is_floating_point())
    throw SafetensorsError(
        {fmt::format("{}: byte {}: tensor {}: is of type {}; a tensor of type {} is wanted",
                     path().string(), offset, quote(Json(tensor.name)), name(tensor.dtype),
                     at::toString(out.scalar_type()))},
        path().string(), offset, tensor.name);
  const bool direct = out.scalar_type() == type && out.is_contiguous() && out.device().is_cpu();
  at::Tensor staged = direct ? out : at::empty(out.sizes(), at::device(at::kCPU).dtype(type));
  file_->read(offset, staged.data_ptr(), size);
  if (!direct) out.copy_(staged);
}

files::FileRecord write_safetensors(const std::filesystem::path& path,
                                    const std::vector<nn::NamedTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata,
                                    const files::Disk& disk) {
  std::set<std::string> names;
  std::vector<TensorEntry> entries;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return size_bytes(dtype_of(tensors[a])) > size_bytes(dtype_of(tensors[b]));
  });
  int64_t end = 0;
  for (const size_t i : order) {
    const nn::NamedTensor& tensor = tensors[i];
    PIPER_CHECK(names.insert(tensor.name).second, tensor.name + " is given twice");
    TensorEntry entry{.name = tensor.name,
                      .dtype = dtype_of(tensor),
                      .shape = tensor.value.sizes().vec(),
                      .begin = end};
    entry.end = end += tensor_bytes(entry.dtype, entry.shape);
    entries.push_back(std::move(entry));
  }
  const std::string header = format_header(entries, metadata);
  files::FileWriter writer(path, static_cast<int64_t>(header.size()) + end, disk);
  writer.write(header);
  for (size_t k = 0; k < order.size(); ++k) {
    const at::Tensor value = tensors[order[k]].value.detach().cpu().contiguous();
    writer.write(value.const_data_ptr(), entries[k].end - entries[k].begin);
  }
  return writer.finish();
}

}  // namespace piper::checkpoint
