#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_weights.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

// The first place that the folder has.
std::optional<Source> locate(const WeightFolder& folder, const std::string& name,
                             bool tied_embeddings) {
  for (Source& source : sources(name, tied_embeddings))
    if (folder.find(source.name) != nullptr) return std::move(source);
  return std::nullopt;
}

// The shape that the file's tensor must have to hold a tensor of `shape`; the leading axis of a
// fused one is its own affair.
std::vector<int64_t> file_shape(const Source& source, const TensorEntry& tensor,
                                const std::vector<int64_t>& shape) {
  if (!source.fused || shape.size() != 2) return shape;
  const int64_t num_experts =
      tensor.shape.empty() ? 0 : std::max(tensor.shape[0], source.expert + 1);
  return {num_experts, source.parts * shape[0], shape[1]};
}

std::string mis_shaped(const std::string& name, const Source& source, const TensorEntry& tensor,
                       const std::vector<int64_t>& allowed) {
  const std::string whose = source.name == name ? "" : fmt::format(" (in '{}')", source.name);
  return fmt::format("tensor '{}'{} has the shape {}; allowed: {}", name, whose,
                     format_shape(tensor.shape), format_shape(allowed));
}

// Only the bytes of the part are read.
void read_part(const WeightFolder& folder, const Source& source, const nn::TensorPart& part,
               at::Tensor value) {
  const int64_t all = nn::whole_tensor(part.shape).num_elements();
  const int64_t first = (source.expert * source.parts + source.part) * all;
  const std::vector<nn::Run> runs = nn::runs_of(part);
  if (runs.size() == 1) return folder.read(source.name, value, first + runs.front().whole);
  const at::Tensor read = at::empty({value.numel()}, value.options());
  for (const nn::Run& run : runs)
    folder.read(source.name, read.narrow(0, run.part, run.count), first + run.whole);
  value.copy_(read.view(value.sizes()));
}

bool is_ignored(const std::string& name, const model::Model& model) {
  return name.ends_with("rotary_emb.inv_freq") || is_left_out(name, model) ||
         (model.tied_embeddings && name == "lm_head.weight");
}

}  // namespace

void check_weights(const WeightFolder& folder, const model::Model& model) {
  Problems problems(folder.path().string());
  std::map<std::string, int64_t> used;  // elements of the file's tensors that the model needs
  std::set<std::string> reported;       // fused tensors already found mis-shaped: once is enough
  for (const TensorShape& expected : expected_tensors(model)) {
    const std::optional<Source> source = locate(folder, expected.name, model.tied_embeddings);
    if (!source) {
      problems.add(
          fmt::format("tensor '{}' {} is missing", expected.name, format_shape(expected.shape)));
      continue;
    }
    const TensorEntry& tensor = *folder.find(source->name);
    const std::vector<int64_t> allowed = file_shape(*source, tensor, expected.shape);
    if (tensor.shape != allowed && reported.insert(source->name).second)
      problems.add(mis_shaped(expected.name, *source, tensor, allowed));
    used[source->name] += tensor_bytes(DType::kU8, expected.shape);
  }
  for (const auto& [name, location] : folder.tensors()) {
    const auto use = used.find(name);
    if (use == used.end()) {
      if (!is_ignored(name, model))
        problems.add(fmt::format("tensor '{}' {} is superfluous", name,
                                 format_shape(location.tensor->shape)));
    } else if (!reported.contains(name) &&
               use->second != tensor_bytes(DType::kU8, location.tensor->shape)) {
      problems.add(fmt::format("tensor '{}' {} holds more experts than the model has", name,
                               format_shape(location.tensor->shape)));
    }
  }
  problems.finish();
}

void load_weights(const WeightFolder& folder, const std::vector<nn::NamedPiece>& pieces,
                  bool tied_embeddings) {
  Problems problems(folder.path().string());
  for (const nn::NamedPiece& piece : pieces) {
    const nn::TensorPart part =
        piece.part ? *piece.part : nn::whole_tensor(piece.value.sizes().vec());
    const std::vector<int64_t>& shape = part.shape;
    const std::optional<Source> source = locate(folder, piece.name, tied_embeddings);
    if (!source) {
      problems.add(fmt::format("tensor '{}' {} is missing", piece.name, format_shape(shape)));
      continue;
    }
    const TensorEntry& tensor = *folder.find(source->name);
    if (const std::vector<int64_t> allowed = file_shape(*source, tensor, shape);
        tensor.shape != allowed)
      problems.add(mis_shaped(piece.name, *source, tensor, allowed));
    else
      read_part(folder, *source, part, piece.value);
  }
  problems.finish();
}

}  // namespace piper::checkpoint
