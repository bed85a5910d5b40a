#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <piper/base/error.h>
#include <piper/comm/secret.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace piper::comm {

Digest random_nonce() {
  Digest nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw IoError(fmt::format("no random bytes: {}", std::strerror(errno)));
  return nonce;
}

std::string random_secret() {
  std::string text;
  for (const std::byte byte : random_nonce())
    text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Digest hmac(const std::string& secret, std::span<const std::byte> bytes) {
  Digest digest{};
  unsigned size = digest.size();
  const void* done = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &size);
  PIPER_CHECK(done != nullptr && size == digest.size());
  return digest;
}

bool equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace piper::comm
