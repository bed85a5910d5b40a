#include <piper/base/error.h>
#include <piper/data/token_type.h>

#include <bit>
#include <cstring>
#include <limits>

namespace piper::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

// Calls `use` with a value of the type's C++ type.
template <class Use>
auto with_type(TokenType type, Use use) {
  switch (type) {
    case TokenType::kUint8:
      return use(uint8_t{});
    case TokenType::kInt8:
      return use(int8_t{});
    case TokenType::kInt16:
      return use(int16_t{});
    case TokenType::kInt32:
      return use(int32_t{});
    case TokenType::kInt64:
      return use(int64_t{});
    case TokenType::kUint16:
      return use(uint16_t{});
  }
  PIPER_CHECK(false, "a token type outside its enumeration");
  std::abort();
}

}  // namespace

std::optional<TokenType> token_type_of(uint8_t code) {
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16,
                               TokenType::kInt32, TokenType::kInt64, TokenType::kUint16})
    if (static_cast<uint8_t>(type) == code) return type;
  return std::nullopt;
}

const char* name(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
    case TokenType::kUint16:
      return "uint16";
  }
  return "?";
}

int64_t size_bytes(TokenType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof value); });
}

int64_t largest(TokenType type) {
  return with_type(type, [](auto value) {
    return static_cast<int64_t>(std::numeric_limits<decltype(value)>::max());
  });
}

TokenType type_for_vocabulary(int64_t vocabulary) {
  PIPER_CHECK(vocabulary >= 1 && vocabulary <= int64_t{1} << 31);
  if (vocabulary <= 256) return TokenType::kUint8;
  return vocabulary < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

void decode(TokenType type, const void* bytes, std::span<int64_t> tokens) {
  with_type(type, [&](auto value) {
    const auto* next = static_cast<const char*>(bytes);
    for (int64_t& token : tokens) {
      std::memcpy(&value, next, sizeof value);
      token = static_cast<int64_t>(value);
      next += sizeof value;
    }
  });
}

void encode(TokenType type, std::span<const int64_t> tokens, void* bytes) {
  with_type(type, [&](auto value) {
    auto* next = static_cast<char*>(bytes);
    for (const int64_t token : tokens) {
      value = static_cast<decltype(value)>(token);
      PIPER_DCHECK(value == token && token >= 0);
      std::memcpy(next, &value, sizeof value);
      next += sizeof value;
    }
  });
}

}  // namespace piper::data
