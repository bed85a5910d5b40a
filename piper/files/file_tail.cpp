#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/files/file_tail.h>
#include <piper/files/file_writer.h>
#include <piper/files/output.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace piper::files {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;

// The bytes from `from` on into a new file. What a file system left as zeros (after a power cut
// gigabytes of them may follow the last record) takes no room there.
void copy(Bytes content, size_t from, const fs::path& to) {
  const int fd = open_output(to, Start::kEmpty, Existing::kAny);
  const auto fail = [&] {
    const int cause = errno;
    ::close(fd);
    throw IoError(to.string() + ": cannot be written: " + cause_of(cause));
  };
  for (size_t done = from; done < content.size();) {
    const std::string_view block = content.at(done, kBlockBytes);
    const bool zeros = block.front() == 0 && block.substr(1) == block.substr(0, block.size() - 1);
    for (size_t written = 0; !zeros && written < block.size();) {
      const ssize_t n = ::pwrite(fd, block.data() + written, block.size() - written,
                                 static_cast<off_t>(done - from + written));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail();
      written += static_cast<size_t>(n);
    }
    done += block.size();
  }
  if (::ftruncate(fd, static_cast<off_t>(content.size() - from)) != 0 || ::fsync(fd) != 0) fail();
  if (::close(fd) != 0) throw IoError(to.string() + ": cannot be closed");
}

}  // namespace

fs::path unused_path(const fs::path& wanted) {
  std::error_code error;
  fs::path path = wanted;
  for (int number = 2; fs::symlink_status(path, error).type() != fs::file_type::not_found; ++number)
    path = wanted.string() + fmt::format("-{}", number);
  return path;
}

std::string_view Bytes::at(size_t offset, size_t most) {
  most = std::min(most, size_ - std::min(offset, size_));
  if (file_ == nullptr) return text_.substr(std::min(offset, size_), most);
  const bool is_here = offset >= block_offset_ && offset + most <= block_offset_ + block_.size();
  if (!is_here) {
    block_.resize(std::min(std::max(most, kBlockBytes), size_ - std::min(offset, size_)));
    file_->read(static_cast<int64_t>(offset), block_.data(), static_cast<int64_t>(block_.size()));
    block_offset_ = offset;
  }
  return std::string_view(block_).substr(offset - block_offset_, most);
}

std::string cut_tail(const fs::path& file, Bytes content, const SoundPart& part,
                     const fs::path& beside) {
  PIPER_CHECK(part.kept <= part.sound && part.sound <= content.size());
  std::string said;
  if (part.sound < content.size()) {
    const fs::path kept_beside = unused_path(beside);
    copy(content, part.sound, kept_beside);
    sync_folder(beside.parent_path());
    said = fmt::format("{}: {}; from there on {} bytes were cut off and are in {}", file.string(),
                       part.damage, content.size() - part.sound, kept_beside.filename().string());
  }
  if (part.kept < content.size()) {
    const int fd = open_output(file, Start::kEnd, Existing::kRecord);
    const bool cut = ::ftruncate(fd, static_cast<off_t>(part.kept)) == 0;
    const int cause = errno;
    ::close(fd);
    if (!cut) throw IoError(file.string() + ": cannot be cut: " + cause_of(cause));
  }
  return said;
}

}  // namespace piper::files
