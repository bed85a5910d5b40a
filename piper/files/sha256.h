// SHA-256 (FIPS 180-4, by OpenSSL) of what is written to and read from disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace piper::files {

// A running hash; feed it in pieces. One thread at a time.
class Sha256 {
 public:
  Sha256();
  void update(const void* bytes, size_t size);
  // 64 lower-case hexadecimal digits; nothing may be fed after it.
  std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string sha256_hex(std::string_view bytes);

// Where a file's bytes are taken from: the system may answer from the pages that were just written,
// which says nothing about the disk.
enum class ReadFrom { kCache, kStorage };

// Hash of a file, read in pieces. kStorage: FileReader::drop_cached_pages() comes first. Throws as
// FileReader does.
std::string sha256_of_file(const std::filesystem::path& path, ReadFrom from = ReadFrom::kCache);

// Hash of a file's size and of so many of its blocks, evenly spaced from the first byte to the
// last; of all of it where it is no larger than those. Throws as FileReader does.
std::string sha256_of_blocks(const std::filesystem::path& path, int64_t num_blocks = 1024,
                             int64_t block_bytes = 1 << 17);

}  // namespace piper::files
