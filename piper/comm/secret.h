// The per-run secret: how processes of a run prove to each other that they know it, without
// telling it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace piper::comm {

using Digest = std::array<std::byte, 32>;

// 64 hexadecimal digits from the operating system's random source. Throws IoError.
std::string random_secret();

// 32 random bytes, never used twice. Throws IoError.
Digest random_nonce();

// HMAC-SHA-256 (RFC 2104) of `bytes` with the key `secret`.
Digest hmac(const std::string& secret, std::span<const std::byte> bytes);

// In a time that does not depend on where they differ.
bool equal(const Digest& a, const Digest& b);

}  // namespace piper::comm
