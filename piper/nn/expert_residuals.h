// Experts' weights as residuals (strategy/residual_code.h): what a rank's share of them has become,
// in a few elements of every block. Both pass over a share in pieces, so that they need little
// memory. Either of two equally far elements may be sent; all ranks put in the same ones.
#pragma once

#include <piper/nn/aten.h>
#include <piper/strategy/residual_code.h>

namespace piper::nn {

// [bytes_of(n) / 2] int16, where all elements were `told` as they are now `now` [n]: one share.
at::Tensor encode_residuals(const at::Tensor& now, const at::Tensor& told,
                            const strategy::ResidualCode& code);
// What an owner sent goes into what was told of its share.
void decode_residuals_(at::Tensor told, const at::Tensor& sent, const strategy::ResidualCode& code);

}  // namespace piper::nn
