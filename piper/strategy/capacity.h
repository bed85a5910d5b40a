// How many rows an expert takes of one sequence, and which go without it beyond them.
//
// By sequence, so that what is dropped depends neither on the mesh nor on the micro-batch: with one
// sequence a micro-batch this is Megatron-LM's expert capacity (get_capacity, moe_utils.py).
#pragma once

#include <piper/base/traits.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace piper::strategy {

// Which copies an expert keeps: those with the largest weights (Megatron-LM's "probs"), or those of
// the first tokens ("position"). Among equal weights it keeps the lower token's.
enum class Drop { kProbability, kPosition };
inline constexpr std::array kDropTraits{NamedValue<Drop>{Drop::kProbability, "probability"},
                                        NamedValue<Drop>{Drop::kPosition, "position"}};
static_assert(are_in_order(kDropTraits));
constexpr const auto& rows(Drop) { return kDropTraits; }

struct Capacity {
  double factor = 0;  // 0 = dropless
  Drop drop = Drop::kProbability;
  // Every expert is sent its whole capacity, the rest of it in rows that weigh nothing, so that who
  // sends and receives how much is the same in every step (Megatron-LM's
  // moe_pad_expert_input_to_capacity).
  bool pads = false;
  bool is_limited() const { return factor > 0; }
  // Returns how many rows a balanced load makes, as a part of its copies.
  double balanced_part() const { return !is_limited() ? 1 : pads ? factor : std::min(1.0, factor); }
  // Rows of the busiest expert over the mean, where choices are that uneven.
  double limited(double imbalance) const {
    return pads ? 1 : is_limited() ? std::min(imbalance, std::max(1.0, factor)) : imbalance;
  }
  bool operator==(const Capacity&) const = default;
};

// What a factor may be, in files and flags.
inline constexpr double kLeastCapacityFactor = 0.01, kLargestCapacityFactor = 1000;

// Rows that one expert takes of one sequence, ceil(factor * sequence * top_k / num_experts), at
// most `sequence`, which drops nothing: a token chooses an expert once. With factor 0 that is the
// answer too. What a product of decimals lies above a whole number by rounding does not count.
int64_t expert_capacity(double factor, int64_t sequence, int64_t top_k, int64_t num_experts);

}  // namespace piper::strategy
