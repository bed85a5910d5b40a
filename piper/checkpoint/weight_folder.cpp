#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/checkpoint/weight_folder.h>
#include <piper/checkpoint/weight_index.h>
#include <piper/files/sha256.h>

#include <set>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void refuse_absence(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw IoError(folder.string() + ": cannot be read: no such folder");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".pkl")
      throw InvalidInput(entry.path().string() +
                         ": is a pickle, which can run code when read; convert it: load the model "
                         "with transformers "
                         "and save_pretrained(folder) writes model.safetensors");
  }
  throw InvalidInput(fmt::format("{}: holds neither {} nor {}", folder.string(), kSingle, kIndex));
}

}  // namespace

WeightFolder::WeightFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::map<std::string, std::string> index;  // tensor -> file; empty without an index
  std::set<std::string> names;
  if (fs::exists(folder_ / kIndex, error)) {
    index = parse_weight_index(read_json_file(folder_ / kIndex), folder_ / kIndex);
    for (const auto& [tensor, name] : index) names.insert(name);
  } else if (fs::exists(folder_ / kSingle, error)) {
    names.insert(kSingle);
  } else {
    refuse_absence(folder_);
  }
  Problems problems((folder_ / kIndex).string());
  for (const std::string& name : names) {
    const SafetensorsFile& file = files_.emplace_back(folder_ / name);
    for (const TensorEntry& tensor : file.tensors()) {
      const auto listed = index.find(tensor.name);
      if (!index.empty() && (listed == index.end() || listed->second != name))
        problems.add(
            fmt::format("does not say that tensor {} is in {}", quote(Json(tensor.name)), name));
      tensors_.emplace(tensor.name, Location{.file = files_.size() - 1, .tensor = &tensor});
    }
  }
  for (const auto& [tensor, name] : index)
    if (!tensors_.contains(tensor))
      problems.add("weight_map." + tensor, "is " + quote(Json(name)) + ", which does not hold it");
  problems.finish();
}

const TensorEntry* WeightFolder::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.tensor;
}

std::string WeightFolder::fingerprint(int64_t whole_bytes) const {
  int64_t all = 0;
  for (const SafetensorsFile& file : files_)
    all += static_cast<int64_t>(fs::file_size(file.path()));
  std::string text;
  for (const SafetensorsFile& file : files_)
    text += fmt::format("{} {}\n", file.path().filename().string(),
                        all <= whole_bytes ? files::sha256_of_file(file.path())
                                           : files::sha256_of_blocks(file.path()));
  return files::sha256_hex(text);
}

void WeightFolder::read(const std::string& name, at::Tensor out, int64_t first_element) const {
  const Location& location = tensors_.at(name);
  files_[location.file].read(*location.tensor, std::move(out), first_element);
}

}  // namespace piper::checkpoint
