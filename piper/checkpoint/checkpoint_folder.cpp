#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/files/file_tail.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <numeric>
#include <string_view>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDamaged = ".damaged", kForeign = ".foreign";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "step-00000120"
bool is_checkpoint(std::string_view name) {
  if (!name.starts_with("step-")) return false;
  name.remove_prefix(5);
  return name.size() >= 8 && name.size() <= 18 && is_number(name);
}

// "step-00000140.tmp-4711-0"
bool is_leftover(std::string_view name) {
  const size_t mark = name.find(".tmp-");
  return mark != std::string_view::npos && is_checkpoint(name.substr(0, mark));
}

// "step-00000130.damaged", "step-00000130.damaged-2"
bool is_damaged(std::string_view name) {
  const size_t mark = name.find(kDamaged);
  if (mark == std::string_view::npos || !is_checkpoint(name.substr(0, mark))) return false;
  name.remove_prefix(mark + kDamaged.size());
  return name.empty() || (name.starts_with("-") && is_number(name.substr(1)));
}

// What Piper puts into a checkpoint, and into one that is not finished.
bool is_own_file(std::string_view name) {
  return name == "manifest.json" || name == "manifest.json.sha256" ||
         (name.starts_with("rank-") && name.ends_with(".safetensors") &&
          is_number(name.substr(5, name.size() - std::string_view("rank-.safetensors").size()))) ||
         (name.starts_with("process-") && name.size() > 13 && is_number(name.substr(8, 5)) &&
          name.substr(13).starts_with(".json"));
}

[[noreturn]] void fail(const fs::path& path, const char* what, const std::error_code& error) {
  throw IoError(fmt::format("{}: cannot be {}: {}", path.string(), what, error.message()));
}

// Sorted.
std::vector<std::string> names_in(const fs::path& folder, bool (*wanted)(std::string_view)) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(folder, error)) {
    if (may_pass(error.value())) fail(folder, "listed", error);
    return names;
  }
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (wanted(name)) names.push_back(name);
  }
  if (error) fail(folder, "listed", error);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_real_folder(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

// Without links.
std::vector<std::string> real_folders(const fs::path& folder, bool (*wanted)(std::string_view)) {
  std::vector<std::string> names = names_in(folder, wanted);
  std::erase_if(names, [&](const std::string& name) { return !is_real_folder(folder / name); });
  return names;
}

// Newest first. Steps of more than eight digits have longer names.
std::vector<std::string> newest_first(std::vector<std::string> names) {
  std::ranges::stable_sort(names, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return names;
}

// Removes Piper's files in a folder, and the folder when nothing else was in it. False: files of
// others stay.
bool remove_own_files(const fs::path& folder) {
  std::error_code error;
  for (const std::string& name : names_in(folder, is_own_file))
    if (!is_real_folder(folder / name) && !fs::remove(folder / name, error) && error)
      fail(folder / name, "removed", error);
  fs::remove(folder, error);
  if (error && error != std::errc::directory_not_empty && error != std::errc::file_exists)
    fail(folder, "removed", error);
  return !error;
}

// The first of `wanted`, `wanted`-2, ... that is free, after the folder was renamed to it.
fs::path move_to(const fs::path& folder, const fs::path& wanted) {
  fs::path name = files::unused_path(wanted);
  if (::rename(folder.c_str(), name.c_str()) != 0)
    fail(folder, "renamed", {errno, std::generic_category()});
  return name;
}

// Renamed first: a crash while files vanish leaves a leftover, never half a checkpoint.
void remove_checkpoint(const fs::path& folder, const std::string& name,
                       std::vector<std::string>& notes) {
  const fs::path doomed =
      move_to(folder / name, folder / fmt::format("{}.tmp-{}-removed", name, ::getpid()));
  if (remove_own_files(doomed)) return;
  const fs::path kept = move_to(doomed, folder / (name + std::string(kForeign)));
  notes.push_back(fmt::format("{}: was removed; what others had put into it is in {}",
                              (folder / name).string(), kept.filename().string()));
}

int64_t bytes_of(const Manifest& manifest) {
  return std::accumulate(
      manifest.files.begin(), manifest.files.end(), int64_t{0},
      [](int64_t sum, const files::FileRecord& file) { return sum + file.bytes; });
}

}  // namespace

Search find_newest_complete(const fs::path& folder) {
  Search search;
  for (const std::string& name : newest_first(names_in(folder, is_checkpoint))) {
    Inspection found = inspect_checkpoint(folder / name, Depth::kHashes);
    if (found.obstacle == Obstacle::kOtherVersion) throw OtherVersion(found.problems);
    if (found.obstacle == Obstacle::kUnreadable)
      throw IoError(fmt::format(
          "{}; {} is not passed over for that: once it can be read, or is moved away, try again",
          fmt::join(found.problems, "; "), (folder / name).string()));
    if (!found.problems.empty()) {
      search.damaged.push_back(std::move(found));
      continue;
    }
    search.newest =
        FoundCheckpoint{.path = std::move(found.path), .manifest = std::move(*found.manifest)};
    break;
  }
  return search;
}

std::vector<std::string> problems(const Search& search) {
  std::vector<std::string> lines;
  for (const Inspection& one : search.damaged)
    lines.insert(lines.end(), one.problems.begin(), one.problems.end());
  return lines;
}

FoundCheckpoint require_newest_complete(const fs::path& folder) {
  Search search = find_newest_complete(folder);
  if (search.newest) return std::move(*search.newest);
  std::vector<std::string> lines = problems(search);
  for (const std::string& name : damaged_names(folder))
    lines.push_back((folder / name).string() + ": was set aside, since it is damaged");
  lines.push_back(folder.string() + ": holds no complete checkpoint to resume from");
  throw InvalidInput(std::move(lines));
}

std::vector<Inspection> inspect_folder(const fs::path& folder, Depth depth) {
  std::vector<Inspection> all;
  for (const std::string& name : newest_first(names_in(folder, is_checkpoint)))
    all.push_back(inspect_checkpoint(folder / name, depth));
  return all;
}

// Without what is somebody else's and happens to have such a name.
std::vector<std::string> checkpoint_names(const fs::path& folder) {
  std::vector<std::string> names = newest_first(names_in(folder, is_checkpoint));
  std::erase_if(names, [&](const std::string& name) {
    std::error_code error;
    return !fs::is_directory(folder / name, error) || names_in(folder / name, is_own_file).empty();
  });
  return names;
}

std::vector<std::string> leftovers(const fs::path& folder) {
  return real_folders(folder, is_leftover);
}

std::vector<std::string> damaged_names(const fs::path& folder) {
  return real_folders(folder, is_damaged);
}

std::vector<std::string> sweep_leftovers(const fs::path& folder) {
  std::vector<std::string> names = leftovers(folder);
  std::erase_if(names, [&](const std::string& name) { return !remove_own_files(folder / name); });
  return names;
}

std::string set_aside(const Inspection& damaged) {
  if (!is_real_folder(damaged.path)) return "";
  const fs::path name = move_to(damaged.path, damaged.path.string() + std::string(kDamaged));
  const size_t more = damaged.problems.size() - 1;
  return fmt::format("set aside as {}: {}{}", name.filename().string(), damaged.problems.front(),
                     more > 0 ? fmt::format(" (and {} more)", more) : "");
}

Rotation keep_newest(const fs::path& folder, int64_t keep) {
  PIPER_CHECK(keep >= 1);
  Rotation done;
  std::vector<std::string> names = checkpoint_names(folder);
  std::erase_if(names, [&](const std::string& name) { return !is_real_folder(folder / name); });
  if (std::ssize(names) <= keep) return done;
  int64_t kept = 0;
  for (const std::string& name : names) {
    if (kept == keep) {
      remove_checkpoint(folder, name, done.notes);
      done.removed.push_back(name);
      continue;
    }
    const Inspection found = inspect_checkpoint(folder / name, Depth::kStorage);
    if (found.manifest) done.read_bytes += bytes_of(*found.manifest);
    if (found.problems.empty())
      ++kept;
    else if (found.obstacle == Obstacle::kNone)
      done.notes.push_back(set_aside(found));
    else  // it stays, and counts as none
      done.notes.push_back(found.problems.front());
  }
  return done;
}

void require_removable(const fs::path& folder) {
  std::error_code error;
  if (fs::is_symlink(folder, error))
    throw InvalidInput(folder.string() +
                       ": is a symbolic link, and --fresh follows none; allowed: to delete the "
                       "checkpoints where it leads, or another --run folder");
}

std::vector<std::string> remove_checkpoints(const fs::path& folder) {
  require_removable(folder);
  std::vector<std::string> notes;
  const auto wanted = [](std::string_view name) {
    return is_checkpoint(name) || is_leftover(name) || is_damaged(name);
  };
  for (const std::string& name : real_folders(folder, wanted))
    if (!remove_own_files(folder / name))
      notes.push_back(
          fmt::format("{}: stays, others have put files into it", (folder / name).string()));
  return notes;
}

}  // namespace piper::checkpoint
