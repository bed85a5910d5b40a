// load_model: the built-ins (configs/models, built into the library), files and folders.
#include <embedded/models.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/python_json.h>
#include <piper/base/standard_input.h>
#include <piper/base/suggest.h>
#include <piper/model/import.h>
#include <piper/model/keys.h>

#include <algorithm>

namespace piper::model {
namespace {

// "…/DeepSeek-V3/config.json" is called DeepSeek-V3, "…/DeepSeek-V3.config.json" too.
std::string name_of(const std::filesystem::path& path) {
  std::string name = path.filename().string();
  if (name == "config.json") {
    const std::string folder =
        std::filesystem::absolute(path).lexically_normal().parent_path().filename().string();
    return folder.empty() ? name : folder;
  }
  for (const std::string_view ending : {".config.json", ".json"})
    if (name.size() > ending.size() && name.ends_with(ending))
      return name.substr(0, name.size() - ending.size());
  return name;
}

bool looks_like_a_path(const std::string& text) {
  std::error_code error;
  return text.find('/') != std::string::npos || text.ends_with(".json") ||
         std::filesystem::exists(text, error);
}

constexpr int64_t kMaxConfigBytes = 64 << 20;

struct Document {
  Json config;
  std::string source;  // for messages
  std::string name;
};

Document find_document(const std::string& name_or_path) {
  const std::string wanted = lower(name_or_path);
  for (const EmbeddedFile& file : embedded::models()) {
    if (file.name != wanted) continue;
    const std::string source = fmt::format("built-in model {}", file.name);
    return {parse_json(file.text, source), source, std::string(file.name)};
  }
  if (name_or_path == kStandardInput)
    return {parse_python_json(standard_input(kMaxConfigBytes), "standard input"), "standard input",
            "model of standard input"};
  if (looks_like_a_path(name_or_path)) {
    std::filesystem::path path = name_or_path;
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) path /= "config.json";
    if (!std::filesystem::exists(path, error))
      throw InvalidInput(fmt::format(
          "{}: no such file; allowed: a config.json, a folder holding one, or a built-in "
          "model (piper model --list)",
          path.string()));
    return {parse_python_json(read_text_file(path, kMaxConfigBytes), path.string()), path.string(),
            name_of(path)};
  }
  const std::vector<std::string> names = builtin_models();
  throw InvalidInput(fmt::format(
      "model '{}' is not known; allowed: a config.json, a folder holding one, or one of {}{}",
      name_or_path, fmt::join(names, ", "), did_you_mean(wanted, names)));
}

}  // namespace

std::vector<std::string> builtin_models() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded::models()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

Json load_config(const std::string& name_or_path, const std::vector<std::string>& ignore) {
  Json config = find_document(name_or_path).config;
  for (const std::string& key : ignore) remove_key(config, key);
  return config;
}

Model load_model(const std::string& name_or_path, const std::vector<std::string>& ignore) {
  const Document document = find_document(name_or_path);
  Model model = import_config(document.config, document.source, ignore);
  model.name = document.name;
  return model;
}

}  // namespace piper::model
