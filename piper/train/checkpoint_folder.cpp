// The functions of manifest.h on the folder that holds a run's checkpoints.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/manifest.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

// "step-00000120"
bool is_checkpoint(std::string_view name) {
  if (!name.starts_with("step-")) return false;
  name.remove_prefix(5);
  return name.size() >= 8 && name.size() <= 18 &&
         name.find_first_not_of("0123456789") == std::string_view::npos;
}

// "step-00000140.tmp-4711-0"
bool is_leftover(std::string_view name) {
  const size_t mark = name.find(".tmp-");
  return mark != std::string_view::npos && is_checkpoint(name.substr(0, mark));
}

std::vector<std::string> names_in(const fs::path& folder, bool (*wanted)(std::string_view)) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) return names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (wanted(name)) names.push_back(name);
  }
  if (error)
    throw IoError(fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

// Newest first. Steps of more than eight digits have longer names.
std::vector<std::string> checkpoints(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder, is_checkpoint);
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return names;
}

}  // namespace

Search find_newest_complete(const fs::path& folder) {
  Search search;
  for (const std::string& name : checkpoints(folder)) {
    Inspection found = inspect_checkpoint(folder / name, Depth::kHashes);
    if (found.problems.empty()) {
      search.newest =
          FoundCheckpoint{.path = std::move(found.path), .manifest = std::move(*found.manifest)};
      return search;
    }
    search.skipped.insert(search.skipped.end(), found.problems.begin(), found.problems.end());
  }
  return search;
}

FoundCheckpoint require_newest_complete(const fs::path& folder) {
  Search search = find_newest_complete(folder);
  if (search.newest) return std::move(*search.newest);
  search.skipped.push_back(folder.string() + ": holds no complete checkpoint to resume from");
  throw InvalidInput(std::move(search.skipped));
}

std::vector<Inspection> inspect_folder(const fs::path& folder, Depth depth) {
  std::vector<Inspection> all;
  for (const std::string& name : checkpoints(folder))
    all.push_back(inspect_checkpoint(folder / name, depth));
  return all;
}

std::vector<std::string> leftovers(const fs::path& folder) { return names_in(folder, is_leftover); }

std::vector<std::string> sweep_leftovers(const fs::path& folder) {
  const std::vector<std::string> names = leftovers(folder);
  for (const std::string& name : names) {
    std::error_code error;
    fs::remove_all(folder / name, error);
    if (error)
      throw IoError(
          fmt::format("{}: cannot be removed: {}", (folder / name).string(), error.message()));
  }
  return names;
}

std::vector<std::string> keep_newest(const fs::path& folder, int64_t keep) {
  PIPER_CHECK(keep >= 1);
  std::vector<std::string> removed;
  int64_t kept = 0;
  for (const std::string& name : checkpoints(folder)) {
    if (!inspect_checkpoint(folder / name, Depth::kSizes).problems.empty()) continue;
    if (kept++ < keep) continue;
    // Renamed first: a crash while files vanish leaves a leftover, never half a checkpoint.
    const fs::path doomed = folder / fmt::format("{}.tmp-{}-removed", name, ::getpid());
    std::error_code error;
    fs::rename(folder / name, doomed, error);
    if (!error) fs::remove_all(doomed, error);
    if (error)
      throw IoError(
          fmt::format("{}: cannot be removed: {}", (folder / name).string(), error.message()));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace piper::train
