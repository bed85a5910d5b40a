#include <piper/base/json.h>
#include <piper/checkpoint/weight_index.h>

#include <set>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

std::map<std::string, std::string> parse_weight_index(const Json& json, const fs::path& path) {
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

}  // namespace piper::checkpoint
