#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/checkpoint_reader.h>
#include <piper/train/hf_names.h>
#include <piper/train/safetensors.h>
#include <piper/train/tensor_check.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper::train {

CheckpointReader::CheckpointReader(FoundCheckpoint checkpoint)
    : checkpoint_(std::move(checkpoint)) {
  Problems problems(checkpoint_.path.string());
  const std::vector<FileRecord>& files = checkpoint_.manifest.files;
  for (size_t i = 0; i < files.size(); ++i) {
    const SafetensorsFile file(checkpoint_.path / files[i].name);
    for (const TensorEntry& entry : file.tensors()) {
      const auto [there, is_new] =
          tensors_.try_emplace(entry.name, Location{i, entry.dtype, entry.shape});
      if (!is_new)
        problems.add(fmt::format("tensor '{}' is both in {} and in {}", entry.name,
                                 files[there->second.file].name, files[i].name));
    }
  }
  problems.finish();
}

void CheckpointReader::require_exactly(const model::Model& model) const {
  Problems problems(checkpoint_.path.string());
  std::set<std::string> expected = {"optimizer/num_steps"};
  for (const TensorShape& tensor : expected_tensors(model)) {
    for (const char* kind : {"parameter/", "first_moment/", "second_moment/"})
      expected.insert(kind + tensor.name);
    const auto parameter = tensors_.find("parameter/" + tensor.name);
    if (parameter != tensors_.end() && parameter->second.dtype == DType::kBF16)
      expected.insert("master/" + tensor.name);
  }
  for (const std::string& name : expected)
    if (!tensors_.contains(name)) problems.add(fmt::format("tensor '{}' is missing", name));
  std::set<std::string> superfluous;  // sorted
  for (const auto& [name, location] : tensors_)
    if (!expected.contains(name)) superfluous.insert(name);
  for (const std::string& name : superfluous)
    problems.add(fmt::format("tensor '{}' is superfluous", name));
  problems.finish();
}

void CheckpointReader::hash_once(size_t file, const std::string& reader) const {
  const FileRecord& record = checkpoint_.manifest.files[file];
  const std::lock_guard lock(mutex_);
  if (hashed_.contains(file)) return;
  if (sha256_of_file(checkpoint_.path / record.name) != record.sha256)
    throw IoError(
        fmt::format("{}: {} reads other bytes than were saved: their SHA-256 is not the "
                    "manifest's",
                    (checkpoint_.path / record.name).string(), reader));
  hashed_.insert(file);
}

void CheckpointReader::read(const std::vector<NamedTensor>& tensors,
                            const std::string& reader) const {
  Problems problems(checkpoint_.path.string());
  std::map<size_t, std::vector<const NamedTensor*>> by_file;
  for (const NamedTensor& tensor : tensors) {
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end()) {
      problems.add(fmt::format("tensor '{}' is missing", tensor.name));
      continue;
    }
    const Location& location = found->second;
    if (location.dtype != dtype_of(tensor) || location.shape != tensor.value.sizes().vec())
      problems.add(fmt::format("tensor '{}' is {} {}; allowed: {} {}", tensor.name,
                               name(location.dtype), format_shape(location.shape),
                               name(dtype_of(tensor)), format_shape(tensor.value.sizes().vec())));
    by_file[location.file].push_back(&tensor);
  }
  problems.finish();
  for (const auto& [index, wanted] : by_file) {
    const FileRecord& record = checkpoint_.manifest.files[index];
    if (record.tensors.empty()) hash_once(index, reader);
    const SafetensorsFile file(checkpoint_.path / record.name);
    for (const NamedTensor* tensor : wanted) {
      const TensorEntry* entry = file.find(tensor->name);
      if (entry != nullptr) file.read(*entry, tensor->value);
      const auto expected = record.tensors.find(tensor->name);
      if (entry == nullptr ||
          (!record.tensors.empty() && (expected == record.tensors.end() ||
                                       expected->second != tensor_hash_text(tensor->value))))
        throw IoError(fmt::format("{}: {} reads other bytes of tensor '{}' than were saved",
                                  file.path().string(), reader, tensor->name));
    }
  }
}

}  // namespace piper::train
