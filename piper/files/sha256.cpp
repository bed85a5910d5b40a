#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/files/sha256.h>

#include <algorithm>
#include <array>
#include <vector>

namespace piper::files {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PIPER_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(const void* bytes, size_t size) {
  PIPER_CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
}

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  PIPER_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.finish();
}

std::string sha256_of_file(const std::filesystem::path& path, ReadFrom from) {
  const FileReader file(path);
  if (from == ReadFrom::kStorage) file.drop_cached_pages();
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  for (int64_t at = 0; at < file.size(); at += std::ssize(buffer)) {
    const int64_t size = std::min<int64_t>(std::ssize(buffer), file.size() - at);
    file.read(at, buffer.data(), size);
    hash.update(buffer.data(), static_cast<size_t>(size));
  }
  return hash.finish();
}

std::string sha256_of_blocks(const std::filesystem::path& path, int64_t num_blocks,
                             int64_t block_bytes) {
  const FileReader file(path);
  if (file.size() <= num_blocks * block_bytes) return sha256_of_file(path);
  Sha256 hash;
  const std::string size = std::to_string(file.size());
  hash.update(size.data(), size.size());
  std::vector<char> block(static_cast<size_t>(block_bytes));
  for (int64_t i = 0; i < num_blocks; ++i) {
    using Wide = __int128;  // the product may need more than 64 bits
    const Wide at = static_cast<Wide>(file.size() - block_bytes) * i / (num_blocks - 1);
    file.read(static_cast<int64_t>(at), block.data(), block_bytes);
    hash.update(block.data(), block.size());
  }
  return hash.finish();
}

}  // namespace piper::files
