#include <piper/base/error.h>
#include <piper/nn/expert_residuals.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>

namespace piper::nn {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;  // elements: less than a megabyte beside them

// The parts of a message, as bytes.
struct CodedRows {
  at::Tensor values, places;
  CodedRows(const at::Tensor& message, int64_t blocks, const strategy::ResidualCode& code) {
    const at::Tensor bytes = message.view(at::kByte);
    const int64_t kept = blocks * code.kept;
    values = bytes.narrow(0, 0, kept * code.value_bytes);
    places = bytes.narrow(0, kept * code.value_bytes, kept);
  }
};

// visit(first block, blocks)
template <class Visit>
void in_pieces(int64_t blocks, const strategy::ResidualCode& code, Visit visit) {
  const int64_t most = std::max<int64_t>(1, kPiece / code.block);
  for (int64_t first = 0; first < blocks; first += most)
    visit(first, std::min(most, blocks - first));
}

}  // namespace

at::Tensor encode_residuals(const at::Tensor& now, const at::Tensor& told,
                            const strategy::ResidualCode& code) {
  PIPER_CHECK(now.numel() == told.numel() && now.numel() % code.block == 0 &&
                  static_cast<int64_t>(now.element_size()) == code.value_bytes,
              "a share in blocks");
  const at::Tensor message =
      at::zeros({code.bytes_of(now.numel()) / 2}, now.options().dtype(at::kShort));
  const int64_t blocks = now.numel() / code.block, kept = code.kept;
  const CodedRows parts(message, blocks, code);
  const at::ScalarType main = main_type(now.scalar_type());
  in_pieces(blocks, code, [&](int64_t first, int64_t count) {
    const auto piece = [&](const at::Tensor& of) {
      return of.narrow(0, first * code.block, count * code.block).view({count, code.block});
    };
    const at::Tensor far = (piece(now).to(main) - piece(told).to(main)).abs_();
    const at::Tensor place =
        std::get<1>(at::topk(far, kept, 1, /*largest=*/true, /*sorted=*/false));
    const at::Tensor values = piece(now).gather(1, place).reshape({-1});
    parts.values.narrow(0, first * kept * code.value_bytes, count * kept * code.value_bytes)
        .copy_(values.view(at::kByte));
    parts.places.narrow(0, first * kept, count * kept).copy_(place.reshape({-1}));
  });
  return message;
}

void decode_residuals_(at::Tensor told, const at::Tensor& sent,
                       const strategy::ResidualCode& code) {
  PIPER_CHECK(told.numel() % code.block == 0 && sent.numel() * 2 == code.bytes_of(told.numel()),
              "a message of another share");
  const int64_t blocks = told.numel() / code.block, kept = code.kept;
  const CodedRows parts(sent, blocks, code);
  in_pieces(blocks, code, [&](int64_t first, int64_t count) {
    // In memory of their own, where values are aligned.
    const at::Tensor values =
        parts.values.narrow(0, first * kept * code.value_bytes, count * kept * code.value_bytes)
            .clone()
            .view(told.scalar_type())
            .view({count, kept});
    const at::Tensor place =
        parts.places.narrow(0, first * kept, count * kept).to(at::kLong).view({count, kept});
    told.narrow(0, first * code.block, count * code.block)
        .view({count, code.block})
        .scatter_(1, place, values);
  });
}

}  // namespace piper::nn
