// How a token is stored in an indexed dataset: the integer types among Megatron's eight.
// Source: the enumeration DType of Megatron-LM's core/datasets/indexed_dataset.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace piper::data {

// The values are the codes in the file. 6 and 7 are floating-point types, which hold no tokens.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8
};

std::optional<TokenType> token_type_of(uint8_t code);
const char* name(TokenType type);  // "uint16"
int64_t size_bytes(TokenType type);
int64_t largest(TokenType type);

// For tokens 0 .. vocabulary - 1: uint8 up to 256; above it Megatron's own choice, uint16 below
// 65500, else int32. Requires 1 <= vocabulary <= 2^31.
TokenType type_for_vocabulary(int64_t vocabulary);

// `bytes` holds size_bytes(type) for every token; little-endian, as this machine must be. Tokens
// that are negative stay so.
void decode(TokenType type, const void* bytes, std::span<int64_t> tokens);
// Requires 0 <= token <= largest(type).
void encode(TokenType type, std::span<const int64_t> tokens, void* bytes);

}  // namespace piper::data
