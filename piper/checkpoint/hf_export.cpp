// export_weights() of hf_weights.h.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/files/file_tail.h>
#include <piper/files/output.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

// "experts.10" sorts after "experts.9".
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto number = [&](const std::string& text, size_t& at) {
    const size_t begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return text.substr(begin, at - begin);
  };
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string x = number(a, i), y = number(b, j);
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

bool ties_embeddings(const Json& config) {
  const auto tie = config.find("tie_word_embeddings");
  return tie != config.end() && tie->is_boolean() && tie->get<bool>();
}

std::string dtype_text(const std::vector<nn::NamedTensor>& tensors) {
  switch (dtype_of(tensors.front())) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI64:
    case DType::kI32:
    case DType::kU8:
      break;
  }
  throw InvalidInput("tensor '" + tensors.front().name + "' is not floating: not a model's weight");
}

// Sorted, without replicas, without a tied head.
std::vector<nn::NamedTensor> exported(std::vector<nn::NamedTensor> tensors, bool tied_embeddings) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const nn::NamedTensor& a, const nn::NamedTensor& b) {
                     return natural_less(a.name, b.name);
                   });
  const auto same = [](const nn::NamedTensor& a, const nn::NamedTensor& b) {
    return a.name == b.name;
  };
  tensors.erase(std::unique(tensors.begin(), tensors.end(), same), tensors.end());
  if (tied_embeddings)
    std::erase_if(tensors, [](const nn::NamedTensor& t) { return t.name == "lm_head.weight"; });
  return tensors;
}

std::vector<std::vector<nn::NamedTensor>> cut_into_shards(
    const std::vector<nn::NamedTensor>& tensors, int64_t max_bytes) {
  std::vector<std::vector<nn::NamedTensor>> shards(1);
  int64_t filled = 0;
  for (const nn::NamedTensor& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.value.nbytes());
    if (!shards.back().empty() && filled + bytes > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
  }
  return shards;
}

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kWholeFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";

// "model-00001-of-00003.safetensors"
bool is_shard(const std::string& name) {
  static const std::regex pattern(R"(model-\d{5,}-of-\d{5,}\.safetensors)");
  return std::regex_match(name, pattern);
}

// The files of weights that the last export left here: those that its index lists.
std::set<std::string> files_of_last_export(const fs::path& folder) {
  std::set<std::string> files{kIndexFile, kWholeFile};
  const fs::path index = folder / kIndexFile;
  std::error_code error;
  if (!fs::is_regular_file(index, error)) return files;
  try {
    const std::string text = read_text_file(index, int64_t{1} << 30, Reads::kRecord);
    const Json listed = parse_json(text, index.string());
    for (const auto& [tensor, file] : listed.at("weight_map").items())
      if (file.is_string() && is_shard(file.get<std::string>()))
        files.insert(file.get<std::string>());
  } catch (const std::exception&) {  // no index of Piper's
  }
  return files;
}

}  // namespace

void require_export_folder(const fs::path& folder) {
  std::error_code error;
  std::set<std::string> names{kIndexFile, kWholeFile, kConfigFile};
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (const std::string name = entry->path().filename().string(); is_shard(name))
      names.insert(name);
  for (const std::string& name : names)
    files::require_output(folder / name, files::Existing::kOurs);
}

std::vector<nn::NamedTensor> with_module_tables(std::vector<nn::NamedTensor> tensors,
                                                const model::Model& model) {
  for (const TableRepeat& repeat : module_tables(model)) {
    const auto table = std::ranges::find(tensors, repeat.table, &nn::NamedTensor::name);
    PIPER_CHECK(table != tensors.end(), repeat.table);
    tensors.push_back({repeat.name, table->value});
  }
  return tensors;
}

Json config_with_modules(Json config, const model::Model& model) {
  if (model.mtp_depth == 0) return config;
  for (const char* other : {"num_mtp_layers", "mtp_num_layers"}) config.erase(other);
  config["num_nextn_predict_layers"] = model.mtp_depth;
  return config;
}

void export_weights(const fs::path& folder, const Json& config,
                    std::vector<nn::NamedTensor> tensors, int64_t max_shard_bytes) {
  PIPER_CHECK(config.is_object());
  tensors = exported(std::move(tensors), ties_embeddings(config));
  PIPER_CHECK(!tensors.empty());
  Json written = config;
  written.erase("torch_dtype");  // the old spelling
  written["dtype"] = dtype_text(tensors);
  const std::vector<std::vector<nn::NamedTensor>> shards =
      cut_into_shards(tensors, max_shard_bytes);

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(folder.string() + ": cannot be created: " + error.message());
  require_export_folder(folder);
  const std::set<std::string> before = files_of_last_export(folder);
  std::set<std::string> files;
  Json weight_map = Json::object();
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? kWholeFile
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    const fs::path temporary = files::unused_path(folder / (name + ".tmp"));
    write_safetensors(temporary, shards[i], {{"format", "pt"}, {std::string(kWrittenBy), "piper"}});
    fs::rename(temporary, folder / name, error);
    if (error)
      throw IoError((folder / name).string() + ": cannot be put in place: " + error.message());
    files.insert(name);
    for (const nn::NamedTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      total_bytes += static_cast<int64_t>(tensor.value.nbytes());
    }
  }
  if (shards.size() > 1) {
    files.insert(kIndexFile);
    files::write_json_file(folder / kIndexFile, {{"metadata", {{"total_size", total_bytes}}},
                                                 {"weight_map", weight_map}});
  }
  for (const std::string& name : before)
    if (!files.contains(name)) files::remove_output(folder / name);
  files::write_json_file(folder / kConfigFile, written);
  files::sync_folder(folder);
}

}  // namespace piper::checkpoint
