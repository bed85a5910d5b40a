#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/text.h>

#include <algorithm>
#include <set>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

// Regular files below `folder`, sorted by path; `skipped` names folders that are not entered.
std::vector<fs::path> files_below(const fs::path& folder, const std::set<std::string>& skipped) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error), end;
  while (!error && walk != end) {
    std::error_code ignored;
    if (walk->is_directory(ignored) && skipped.contains(walk->path().filename().string()))
      walk.disable_recursion_pending();
    else if (walk->is_regular_file(ignored))
      files.push_back(walk->path());
    walk.increment(error);
  }
  if (error)
    throw IoError(fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.generic_string() < b.generic_string();
  });
  return files;
}

std::string concatenate(const std::vector<fs::path>& files) {
  std::string bytes;
  for (const fs::path& file : files) bytes += read_text_file(file);
  return bytes;
}

}  // namespace

Text::Text(std::string bytes, std::string source)
    : storage_(std::make_shared<const std::string>(std::move(bytes))),
      view_(*storage_),
      source_(std::move(source)) {
  if (view_.empty()) throw InvalidInput(source_ + ": is empty; text to train on is expected");
}

Text read_text(const fs::path& path, const std::vector<std::string>& extensions) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw IoError(path.string() + ": cannot be read: no such file or folder");
  if (!fs::is_directory(path, error)) return Text(read_text_file(path), path.string());
  std::vector<fs::path> files = files_below(path, {});
  if (!extensions.empty())
    std::erase_if(files, [&](const fs::path& file) {
      return std::find(extensions.begin(), extensions.end(), file.extension().string()) ==
             extensions.end();
    });
  if (files.empty())
    throw InvalidInput(path.string() + ": holds no file" +
                       (extensions.empty() ? std::string() : " with the extension asked for"));
  return Text(concatenate(files), path.string());
}

Text read_own_text(const fs::path& project) {
  const std::set<std::string> skipped = {"build", ".git", ".venv", "__pycache__"};
  std::string bytes;
  for (const char* name : {"README.md", "docs", "piper"}) {
    const fs::path part = project / name;
    std::error_code error;
    if (fs::is_directory(part, error))
      bytes += concatenate(files_below(part, skipped));
    else if (fs::is_regular_file(part, error))
      bytes += read_text_file(part);
  }
  if (bytes.empty())
    throw IoError(project.string() +
                  ": holds none of README.md, docs, piper: the default text; name another");
  return Text(std::move(bytes), "the project's own files");
}

void check_vocabulary(const Text& text, int64_t vocabulary) {
  const std::string_view bytes = text.bytes();
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [&](char byte) {
    return static_cast<unsigned char>(byte) >= vocabulary;
  });
  if (bad != bytes.end())
    throw InvalidInput(fmt::format(
        "{}: byte {} at offset {} is no token of a vocabulary of {}; byte text needs 256",
        text.source(), static_cast<unsigned char>(*bad), bad - bytes.begin(), vocabulary));
}

}  // namespace piper::train
