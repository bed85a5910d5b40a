#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/train/weight_folder.h>

#include <set>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Why a file name from an index may not be opened; "" = it may.
std::string refusal(const fs::path& folder, const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute() || path.has_parent_path() || name == "." || name == ".." ||
      name.find('\\') != std::string::npos || name.find('\0') != std::string::npos)
    return "allowed: the plain name of a file in the folder";
  if (path.extension() != ".safetensors") return "allowed: a .safetensors file";
  std::error_code error;
  const fs::path target = fs::canonical(folder / path, error);
  if (error) return "the file is missing";
  if (target.parent_path() != fs::canonical(folder, error))
    return "it is a link that leaves the folder; copy the file itself into it (cp -L)";
  return "";
}

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

// tensor -> file, from the index.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const Json json = read_json_file(path);
  Problems problems(path.string());
  ObjectReader root(json, "", &problems);
  root.ignore("metadata");
  const Json* map = root.object("weight_map");
  if (map == nullptr && problems.empty()) root.problem("weight_map", "is missing");
  root.refuse_unknown();
  std::map<std::string, std::string> files;
  std::set<std::string> checked;  // files whose name was judged already
  if (map != nullptr)
    for (const auto& [tensor, file] : map->items()) {
      const std::string key = "weight_map." + tensor;
      if (!file.is_string()) {
        problems.add(key, "is " + quote(file) + "; allowed: a string");
        continue;
      }
      const auto name = file.get<std::string>();
      if (checked.insert(name).second)
        if (const std::string why = refusal(path.parent_path(), name); !why.empty())
          problems.add(key, "is " + quote(file) + "; " + why);
      files.emplace(tensor, name);
    }
  problems.finish();
  return files;
}

}  // namespace

WeightFolder::WeightFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::map<std::string, std::string> index;  // tensor -> file; empty without an index
  std::set<std::string> names;
  if (fs::exists(folder_ / kIndex, error)) {
    index = read_index(folder_ / kIndex);
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

void WeightFolder::read(const std::string& name, at::Tensor out, int64_t first_element) const {
  const Location& location = tensors_.at(name);
  files_[location.file].read(*location.tensor, std::move(out), first_element);
}

}  // namespace piper::train
