#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/hf_names.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/checkpoint/tensor_check.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper::checkpoint {

namespace {

const std::string kParameter = "parameter/";

int64_t num_elements(const std::vector<nn::Overlap>& overlaps) {
  int64_t sum = 0;
  for (const nn::Overlap& overlap : overlaps) sum += overlap.count;
  return sum;
}

}  // namespace

bool CheckpointReader::Wanted::is_same() const {
  const int64_t common = num_elements(overlaps);
  return common == location->part.num_elements() && common == tensor->value.numel();
}

CheckpointReader::CheckpointReader(FoundCheckpoint checkpoint)
    : checkpoint_(std::move(checkpoint)) {
  Problems problems(checkpoint_.path.string());
  const std::vector<files::FileRecord>& files = checkpoint_.manifest.files;
  for (size_t i = 0; i < files.size(); ++i) {
    const SafetensorsFile file(checkpoint_.path / files[i].name);
    for (const TensorEntry& entry : file.tensors()) {
      nn::NameInFile in = nn::name_in_file(entry.name, entry.shape);
      tensors_[in.name].push_back({i, entry.name, entry.dtype, std::move(in.part)});
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, locations] : tensors_)
    if (locations.size() > 1) names.push_back(name);
  std::ranges::sort(names);
  for (const std::string& name : names) check_once(name, tensors_.at(name), problems);
  problems.finish();
}

// That no element is in two places, and that they are parts of the same tensor.
void CheckpointReader::check_once(const std::string& name, const std::vector<Location>& locations,
                                  Problems& problems) const {
  const auto file = [&](const Location& at) { return checkpoint_.manifest.files[at.file].name; };
  struct Held {
    nn::Run run;
    const Location* location;
  };
  std::vector<Held> held;
  for (const Location& at : locations) {
    if (at.part.shape != locations.front().part.shape || at.dtype != locations.front().dtype)
      return problems.add(fmt::format("tensor '{}' has another shape or type in {} than in {}",
                                      name, file(locations.front()), file(at)));
    for (const nn::Run& run : nn::runs_of(at.part)) held.push_back({run, &at});
  }
  std::ranges::stable_sort(held, {}, [](const Held& h) { return h.run.whole; });
  for (size_t i = 1; i < held.size(); ++i)
    if (held[i - 1].run.whole + held[i - 1].run.count > held[i].run.whole)
      return problems.add(fmt::format("tensor '{}' is both in {} and in {}", name,
                                      file(*held[i - 1].location), file(*held[i].location)));
}

void CheckpointReader::require_exactly(const model::Model& model) const {
  Problems problems(checkpoint_.path.string());
  std::set<std::string> expected = {"optimizer/num_steps"};
  for (const TensorShape& tensor : expected_tensors(model)) {
    for (const char* kind : {"parameter/", "first_moment/", "second_moment/"})
      expected.insert(kind + tensor.name);
    const auto parameter = tensors_.find("parameter/" + tensor.name);
    if (parameter != tensors_.end() && parameter->second.front().dtype == DType::kBF16)
      expected.insert("master/" + tensor.name);
  }
  for (const std::string& name : expected) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      problems.add(fmt::format("tensor '{}' is missing", name));
      continue;
    }
    int64_t there = 0;
    for (const Location& at : found->second) there += at.part.num_elements();
    const int64_t whole = nn::whole_tensor(found->second.front().part.shape).num_elements();
    if (there < whole)
      problems.add(
          fmt::format("of tensor '{}' {} of {} elements are missing", name, whole - there, whole));
  }
  std::set<std::string> superfluous;  // sorted
  for (const auto& [name, locations] : tensors_)
    if (!expected.contains(name)) superfluous.insert(name);
  for (const std::string& name : superfluous)
    problems.add(fmt::format("tensor '{}' is superfluous", name));
  problems.finish();
}

std::vector<nn::NamedTensor> CheckpointReader::weights(const model::Model& model) const {
  Problems problems(checkpoint_.path.string());
  std::vector<nn::NamedTensor> saved;
  for (const TensorShape& tensor : expected_tensors(model)) {
    const std::string name = kParameter + tensor.name;
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      problems.add(fmt::format("tensor '{}' is missing", name));
    else
      saved.push_back({name, at::empty(tensor.shape, scalar_type(found->second.front().dtype))});
  }
  problems.finish();
  read(saved);
  for (nn::NamedTensor& tensor : saved) tensor.name.erase(0, kParameter.size());
  return saved;
}

void CheckpointReader::hash_once(size_t file, const std::string& reader) const {
  const files::FileRecord& record = checkpoint_.manifest.files[file];
  const std::lock_guard lock(mutex_);
  if (hashed_.contains(file)) return;
  if (files::sha256_of_file(checkpoint_.path / record.name) != record.sha256)
    throw IoError(
        fmt::format("{}: {} reads other bytes than were saved: their SHA-256 is not the "
                    "manifest's",
                    (checkpoint_.path / record.name).string(), reader));
  hashed_.insert(file);
}

void CheckpointReader::read(const std::vector<nn::NamedTensor>& tensors,
                            const std::string& reader) const {
  Problems problems(checkpoint_.path.string());
  std::map<size_t, std::vector<Wanted>> by_file;
  for (const nn::NamedTensor& tensor : tensors) {
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end()) {
      problems.add(fmt::format("tensor '{}' is missing", tensor.name));
      continue;
    }
    const nn::TensorPart part = nn::part_of(tensor);
    const Location& first = found->second.front();
    if (first.dtype != dtype_of(tensor) || first.part.shape != part.shape) {
      problems.add(fmt::format("tensor '{}' is {} {}; allowed: {} {}", tensor.name,
                               name(first.dtype), format_shape(first.part.shape),
                               name(dtype_of(tensor)), format_shape(part.shape)));
      continue;
    }
    int64_t there = 0;
    for (const Location& at : found->second) {
      std::vector<nn::Overlap> common = nn::overlaps(part, at.part);
      if (common.empty()) continue;
      there += num_elements(common);
      by_file[at.file].push_back({&tensor, &at, std::move(common)});
    }
    if (there < tensor.value.numel())
      problems.add(fmt::format("of tensor '{}' {} of {} elements are missing", tensor.name,
                               tensor.value.numel() - there, tensor.value.numel()));
  }
  problems.finish();
  std::map<const nn::NamedTensor*, at::Tensor> unfinished;  // strided ones, of which parts are here
  for (const auto& [index, all] : by_file) {
    const files::FileRecord& record = checkpoint_.manifest.files[index];
    if (record.tensors.empty()) hash_once(index, reader);
    const SafetensorsFile file(checkpoint_.path / record.name);
    for (const Wanted& wanted : all) {
      const nn::NamedTensor& tensor = *wanted.tensor;
      const TensorEntry* entry = file.find(wanted.location->name);
      at::Tensor arrived = wanted.is_same() || entry == nullptr
                               ? tensor.value
                               : at::empty(entry->shape, tensor.value.options());
      if (entry != nullptr) file.read(*entry, arrived);
      const auto expected = record.tensors.find(wanted.location->name);
      if (entry == nullptr ||
          (!record.tensors.empty() &&
           (expected == record.tensors.end() || expected->second != tensor_hash_text(arrived))))
        throw IoError(fmt::format("{}: {} reads other bytes of tensor '{}' than were saved",
                                  file.path().string(), reader, wanted.location->name));
      if (wanted.is_same()) continue;
      at::Tensor target = tensor.value;
      if (!target.is_contiguous()) {
        at::Tensor& gathered = unfinished[&tensor];
        if (!gathered.defined()) gathered = at::empty(target.sizes(), target.options());
        target = gathered;
      }
      const at::Tensor to = target.view({-1}), from = arrived.view({-1});
      for (const nn::Overlap& overlap : wanted.overlaps)
        to.narrow(0, overlap.one, overlap.count)
            .copy_(from.narrow(0, overlap.other, overlap.count));
    }
  }
  for (auto& [tensor, gathered] : unfinished) {
    at::Tensor value = tensor->value;
    value.copy_(gathered);
  }
}

}  // namespace piper::checkpoint
