#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/files/file_tail.h>
#include <piper/files/file_writer.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace piper::files {

namespace fs = std::filesystem;

fs::path unused_path(const fs::path& wanted) {
  std::error_code error;
  fs::path path = wanted;
  for (int number = 2; fs::symlink_status(path, error).type() != fs::file_type::not_found; ++number)
    path = wanted.string() + fmt::format("-{}", number);
  return path;
}

std::string cut_tail(const fs::path& file, std::string_view content, const SoundPart& part,
                     const fs::path& beside) {
  PIPER_CHECK(part.kept <= part.sound && part.sound <= content.size());
  std::string said;
  if (part.sound < content.size()) {
    const fs::path kept_beside = unused_path(beside);
    FileWriter writer(kept_beside);
    writer.write(content.substr(part.sound));
    writer.finish();
    sync_folder(beside.parent_path());
    said = fmt::format("{}: {}; from there on {} bytes were cut off and are in {}", file.string(),
                       part.damage, content.size() - part.sound, kept_beside.filename().string());
  }
  if (part.kept < content.size() && ::truncate(file.c_str(), static_cast<off_t>(part.kept)) != 0)
    throw IoError(file.string() + ": cannot be cut: " + std::strerror(errno));
  return said;
}

}  // namespace piper::files
