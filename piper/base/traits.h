// A row of traits for each enumerator, the one place that knows its name and properties: parsing,
// help, tables and decisions ask the row. Rows stand beside the enum, in its order, and begin with
// `value` and `name`:
//
//   enum class Fruit : uint8_t { kApple, kPear };
//   struct FruitTraits { Fruit value; const char* name; bool has_stone; };
//   inline constexpr std::array kFruitTraits{FruitTraits{Fruit::kApple, "apple", false}, ...};
//   constexpr const auto& rows(Fruit) { return kFruitTraits; }
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace piper {

template <class Enum>
concept HasTraits = requires(Enum value) {
  rows(value)[0].name;
};

// The row of an enumerator that has a name and nothing else. `help` is for --help: what the name does
// not say.
template <class Enum>
struct NamedValue {
  Enum value;
  const char* name;
  const char* help = "";
};

// Whether row i is that of enumerator i, for a static_assert beside the rows.
template <class Rows>
constexpr bool are_in_order(const Rows& rows) {
  for (size_t i = 0; i < rows.size(); ++i)
    if (static_cast<size_t>(rows[i].value) != i) return false;
  return true;
}

template <HasTraits Enum>
constexpr const auto& traits(Enum value) {
  return rows(value).at(static_cast<size_t>(value));
}

template <HasTraits Enum>
constexpr auto values_of() {
  std::array<Enum, std::tuple_size_v<std::remove_cvref_t<decltype(rows(Enum{}))>>> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = rows(Enum{})[i].value;
  return values;
}

template <HasTraits Enum>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& row : rows(Enum{})) names.emplace_back(row.name);
  return names;
}

template <HasTraits Enum>
constexpr std::optional<Enum> find_by_name(std::string_view name) {
  for (const auto& row : rows(Enum{}))
    if (row.name == name) return row.value;
  return std::nullopt;
}

}  // namespace piper
