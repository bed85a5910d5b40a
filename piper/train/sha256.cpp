#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <piper/base/error.h>
#include <piper/train/sha256.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace piper::train {

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
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  if (!file) throw IoError(path.string() + ": cannot be read: " + std::strerror(errno));
  if (from == ReadFrom::kStorage)  // an advice: where it is not followed the pages are read
    static_cast<void>(::posix_fadvise(::fileno(file.get()), 0, 0, POSIX_FADV_DONTNEED));
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    hash.update(buffer.data(), size);
  if (std::ferror(file.get()))
    throw IoError(path.string() + ": cannot be read to its end: " + std::strerror(errno));
  return hash.finish();
}

}  // namespace piper::train
