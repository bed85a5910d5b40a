#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/host_read.h>
#include <piper/nn/rope.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace piper::nn {
namespace {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void scale_llama3(const model::Rope& rope, std::vector<double>& frequencies) {
  const auto positions = static_cast<double>(rope.original_positions);
  const double longest = positions / rope.low_frequency, shortest = positions / rope.high_frequency;
  for (double& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      frequency /= rope.factor;
      continue;
    }
    const double smooth =
        (positions / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
    frequency = (1 - smooth) * frequency / rope.factor + smooth * frequency;
  }
}

// The pair that makes `turns` turns over the original positions.
double pair_of_turns(const model::Rope& rope, double rotated, double turns) {
  return rotated *
         std::log(static_cast<double>(rope.original_positions) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void scale_yarn(const model::Rope& rope, int64_t rotated, std::vector<double>& frequencies) {
  double low = pair_of_turns(rope, static_cast<double>(rotated), rope.beta_fast);
  double high = pair_of_turns(rope, static_cast<double>(rotated), rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotated - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= interpolated / rope.factor + (1 - interpolated);
  }
}

}  // namespace

std::vector<double> rope_frequencies(const model::Rope& rope, int64_t rotated) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotated; i += 2)
    frequencies.push_back(
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(rotated)));
  if (rope.scaling == "none") return frequencies;
  if (rope.scaling != "linear" && rope.scaling != "llama3" && rope.scaling != "yarn")
    throw InvalidInput(fmt::format(
        "rotary scaling '{}' cannot be computed; allowed: linear, llama3, yarn", rope.scaling));
  if (rope.factor <= 0)
    throw InvalidInput(fmt::format(
        "rotary scaling '{}' without a factor; allowed: a number above 0", rope.scaling));
  if (rope.scaling != "linear" && rope.original_positions <= 0)
    throw InvalidInput(fmt::format(
        "rotary scaling '{}' without original_max_position_embeddings; allowed: an integer from 1",
        rope.scaling));
  if (rope.scaling == "linear")
    for (double& frequency : frequencies) frequency /= rope.factor;
  if (rope.scaling == "llama3") scale_llama3(rope, frequencies);
  if (rope.scaling == "yarn") scale_yarn(rope, rotated, frequencies);
  return frequencies;
}

double rope_attention_factor(const model::Rope& rope) {
  if (rope.scaling != "yarn") return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  if (rope.mscale > 0 && rope.mscale_all_dim > 0)
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  return yarn_mscale(rope.factor, 1);
}

double rope_score_factor(const model::Rope& rope) {
  if (rope.scaling == "none" || rope.mscale_all_dim <= 0) return 1;
  const double mscale = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return mscale * mscale;
}

RopeTable make_rope_table(int64_t positions, int64_t head_dim, const model::Rope& rope,
                          at::ScalarType dtype, at::Device device) {
  const auto rotated =
      static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_factor) / 2 * 2;
  const std::vector<double> frequencies = rope_frequencies(rope, rotated);
  const at::Tensor angle =
      at::outer(at::arange(positions, at::kDouble), at::tensor(at::ArrayRef<double>(frequencies)));
  const double factor = rope_attention_factor(rope);
  const auto there = [&](const at::Tensor& of_angle) {
    return put_on_device((of_angle * factor).to(dtype).contiguous(), device);
  };
  return {
      .cosine = there(angle.cos()), .sine = there(angle.sin()), .interleaved = rope.interleaved};
}

}  // namespace piper::nn
