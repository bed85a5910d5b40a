// The conflicts that MoNTA finds between collectives of one rank through the same network
// ("Communication Conflict", Fig. 11), and in which order it serves them. With a synchronous pipeline
// and synchronous gradients there is none. Constants, thread-safe.
//
// The order is printed as "EP << PP << CP << DP": numbers of priority, the smallest first, since the
// text goes on "ensuring the efficiency of EP AllToAll".
#pragma once

#include <piper/strategy/rank_layout.h>

#include <array>
#include <cstdint>

namespace piper::cost::paper::monta {

enum class Asynchronous : uint8_t { kPipeline, kGradients };  // what must be, for the conflict

struct Conflict {
  strategy::Axis axis, against;  // `against` runs beside what `axis` needs
  const char* of_axis;
  const char* of_against;
  Asynchronous cause;
};
inline constexpr std::array kConflicts{
    Conflict{strategy::Axis::kContext, strategy::Axis::kPipeline, "gather of keys and values",
             "activations of the next stage", Asynchronous::kPipeline},
    Conflict{strategy::Axis::kExpert, strategy::Axis::kData, "all-to-all",
             "gradients of the experts' first matrices", Asynchronous::kGradients},
    Conflict{strategy::Axis::kContext, strategy::Axis::kData, "gradients of keys and values",
             "gradients of attention's last matrix", Asynchronous::kGradients},
    Conflict{strategy::Axis::kPipeline, strategy::Axis::kData, "gradients of activations",
             "gradients of queries, keys and values", Asynchronous::kGradients}};

// 0 is served first. Of other axes: after these four.
constexpr int priority(strategy::Axis axis) {
  constexpr std::array kOrder{strategy::Axis::kExpert, strategy::Axis::kPipeline,
                              strategy::Axis::kContext, strategy::Axis::kData};
  int place = 0;
  while (place < static_cast<int>(kOrder.size()) && kOrder[static_cast<size_t>(place)] != axis)
    ++place;
  return place;
}

}  // namespace piper::cost::paper::monta
