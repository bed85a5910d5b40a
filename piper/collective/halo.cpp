#include <piper/collective/halo.h>

#include <algorithm>

namespace piper::collective {
namespace {

std::vector<int32_t> others(int64_t member, const Units& units, int64_t direction) {
  const std::span<const int32_t> unit = units.members(units.unit(member));
  const auto size = static_cast<int64_t>(unit.size());
  std::vector<int32_t> order;
  for (int64_t i = 1; i < size; ++i)
    order.push_back(unit[(units.place(member) + direction * i + size) % size]);
  return order;
}

std::vector<int32_t> begun_at(size_t first, std::vector<int32_t> order) {
  if (!order.empty())
    std::rotate(order.begin(), order.begin() + static_cast<int64_t>(first % order.size()),
                order.end());
  return order;
}

}  // namespace

std::vector<int32_t> halo_counts_told(int64_t from, int64_t to, const Units& units) {
  if (units.together(from, to) || units.counterpart(from, units.unit(to)) != to)
    return {static_cast<int32_t>(to)};
  const std::span<const int32_t> unit = units.members(units.unit(to));
  return {unit.begin(), unit.end()};
}

std::vector<int32_t> halo_sources(int64_t member, const Units& units) {
  std::vector<int32_t> sources;
  for (const int32_t unit : units_towards(member, units))
    for (const int32_t source : units.speaking_to(member, unit)) sources.push_back(source);
  return sources;
}

std::vector<int32_t> units_from(int64_t member, const Units& units) {
  return begun_at(units.turn(member), units.order().targets(units.unit(member)));
}

std::vector<int32_t> units_towards(int64_t member, const Units& units) {
  return begun_at(units.turn(member), units.order().sources(units.unit(member)));
}

std::vector<int32_t> unit_targets(int64_t member, const Units& units) {
  return others(member, units, 1);
}

std::vector<int32_t> unit_sources(int64_t member, const Units& units) {
  return others(member, units, -1);
}

}  // namespace piper::collective
