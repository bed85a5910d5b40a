#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/balance/expert_placement.h>
#include <piper/base/error.h>
#include <piper/base/json.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace piper::balance {
namespace {

constexpr int64_t kMaxExperts = 1'000'000;

std::vector<std::string> problems_of(const std::vector<std::vector<int32_t>>& held,
                                     int64_t num_experts, const std::string& source) {
  std::vector<std::string> problems;
  std::vector<char> found(static_cast<size_t>(num_experts));
  for (size_t rank = 0; rank < held.size(); ++rank) {
    std::set<int32_t> here;
    for (const int32_t expert : held[rank]) {
      if (expert < 0 || expert >= num_experts) {
        problems.push_back(fmt::format("{}: rank {} holds expert {}; allowed: 0 to {}", source,
                                       rank, expert, num_experts - 1));
        continue;
      }
      found[static_cast<size_t>(expert)] = 1;
      if (!here.insert(expert).second)
        problems.push_back(fmt::format("{}: rank {} holds expert {} twice; allowed: once on a rank",
                                       source, rank, expert));
    }
  }
  std::vector<int64_t> missing;
  for (int64_t e = 0; e < num_experts; ++e)
    if (found[static_cast<size_t>(e)] == 0) missing.push_back(e);
  if (!missing.empty())
    problems.push_back(fmt::format("{}: no rank holds expert{} {}; allowed: every expert on a rank",
                                   source, missing.size() > 1 ? "s" : "",
                                   fmt::join(missing, ", ")));
  return problems;
}

}  // namespace

ExpertPlacement::ExpertPlacement(std::vector<std::vector<int32_t>> held, int64_t num_experts,
                                 const std::string& source)
    : held_(std::move(held)) {
  if (std::vector<std::string> problems = problems_of(held_, num_experts, source);
      !problems.empty())
    throw InvalidInput(std::move(problems));
  index(num_experts);
}

ExpertPlacement ExpertPlacement::plain(int64_t num_experts, int64_t num_ranks, int64_t redundant) {
  PIPER_CHECK(num_ranks > 0 && num_experts % num_ranks == 0, "experts divide among the ranks");
  ExpertPlacement placement;
  const int64_t each = num_experts / num_ranks, copies = redundant / num_ranks;
  PIPER_CHECK(redundant % num_ranks == 0 && copies <= num_experts - each,
              "copies divide among the ranks, of experts that these have not");
  placement.held_.resize(static_cast<size_t>(num_ranks));
  for (int64_t e = 0; e < num_experts; ++e)
    placement.held_[static_cast<size_t>(e / each)].push_back(static_cast<int32_t>(e));
  for (int64_t rank = 0; rank < num_ranks; ++rank)
    for (int64_t slot = 0; slot < copies; ++slot)
      placement.held_[static_cast<size_t>(rank)].push_back(
          static_cast<int32_t>(((rank + 1) * each + slot) % num_experts));
  placement.index(num_experts);
  return placement;
}

void ExpertPlacement::index(int64_t num_experts) {
  const auto experts = static_cast<size_t>(num_experts);
  first_place_.assign(experts, -1);
  rank_of_.assign(experts, -1);
  std::vector<size_t> depth(experts);
  std::vector<std::vector<int32_t>> copies(experts);
  int32_t place = 0;
  for (size_t rank = 0; rank < held_.size(); ++rank)
    for (size_t i = 0; i < held_[rank].size(); ++i, ++place) {
      const auto e = static_cast<size_t>(held_[rank][i]);
      copies[e].push_back(place);
      if (first_place_[e] >= 0 && i >= depth[e]) continue;
      depth[e] = i;
      first_place_[e] = place;
      rank_of_[e] = static_cast<int32_t>(rank);
    }
  copies_.clear();
  first_copy_ = {0};
  for (const std::vector<int32_t>& of : copies) {
    copies_.insert(copies_.end(), of.begin(), of.end());
    first_copy_.push_back(static_cast<int32_t>(copies_.size()));
  }
  has_one_copy_ = place == num_experts;
}

bool ExpertPlacement::is_even() const {
  return std::ranges::all_of(
      held_, [&](const std::vector<int32_t>& of) { return of.size() == held_[0].size(); });
}

bool ExpertPlacement::has_homes_first() const {
  if (!is_even() || num_experts() % num_ranks() != 0) return false;
  const auto num_homes = static_cast<size_t>(num_experts() / num_ranks());
  for (size_t rank = 0; rank < held_.size(); ++rank)
    for (size_t i = 0; i < num_homes; ++i)
      if (rank_of(held_[rank][i]) != static_cast<int64_t>(rank)) return false;
  return true;
}

std::span<const int32_t> ExpertPlacement::copies_of(int64_t expert) const {
  const auto e = static_cast<size_t>(expert);
  const auto first = static_cast<size_t>(first_copy_[e]);
  return std::span(copies_).subspan(first, static_cast<size_t>(first_copy_[e + 1]) - first);
}

ExpertPlacement ExpertPlacement::homes() const {
  ExpertPlacement result;
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    result.held_.emplace_back();
    for (const int32_t expert : held_[rank])
      if (rank_of(expert) == static_cast<int64_t>(rank)) result.held_.back().push_back(expert);
  }
  result.index(num_experts());
  return result;
}

ExpertPlacement ExpertPlacement::with_copies(
    const std::vector<std::vector<int32_t>>& by_rank) const {
  PIPER_CHECK(by_rank.size() == held_.size(), "copies of every rank");
  std::vector<std::vector<int32_t>> held = homes().held_;
  for (size_t rank = 0; rank < held.size(); ++rank)
    held[rank].insert(held[rank].end(), by_rank[rank].begin(), by_rank[rank].end());
  return {std::move(held), num_experts()};
}

std::vector<int32_t> ExpertPlacement::places_from(int64_t expert, int64_t rank) const {
  const std::span<const int32_t> copies = copies_of(expert);
  std::vector<int32_t> places(copies.begin(), copies.end());
  if (places.size() == 1) return places;
  int32_t first = 0;
  for (int64_t r = 0; r < rank; ++r)
    first += static_cast<int32_t>(held_[static_cast<size_t>(r)].size());
  const auto end = first + static_cast<int32_t>(held_[static_cast<size_t>(rank)].size());
  for (const int32_t place : places)
    if (place >= first && place < end) return {place};
  std::rotate(places.begin(), places.begin() + rank % std::ssize(places), places.end());
  return places;
}

bool ExpertPlacement::is_plain() const {
  if (!has_one_copy_ || !is_even()) return false;
  for (size_t e = 0; e < first_place_.size(); ++e)
    if (first_place_[e] != static_cast<int32_t>(e)) return false;
  return true;
}

ExpertPlacement ExpertPlacement::swapped(int64_t expert, int64_t other) const {
  PIPER_CHECK(has_one_copy_, "experts are swapped where each has one copy");
  ExpertPlacement result = *this;
  const auto find = [&](int64_t e) -> int32_t& {
    std::vector<int32_t>& on = result.held_[static_cast<size_t>(rank_of(e))];
    return *std::ranges::find(on, static_cast<int32_t>(e));
  };
  int32_t& here = find(expert);
  int32_t& there = find(other);
  std::swap(here, there);
  std::swap(result.first_place_[static_cast<size_t>(expert)],
            result.first_place_[static_cast<size_t>(other)]);
  std::swap(result.rank_of_[static_cast<size_t>(expert)],
            result.rank_of_[static_cast<size_t>(other)]);
  result.copies_ = result.first_place_;
  return result;
}

std::string to_text(const ExpertPlacement& placement) {
  std::vector<std::string> ranks;
  for (const std::vector<int32_t>& held : placement.held())
    ranks.push_back(fmt::format("{}", fmt::join(held, " ")));
  return fmt::format("{}", fmt::join(ranks, " | "));
}

Json to_json(const Placements& placements) {
  Json json = Json::object();
  for (const auto& [layer, placement] : placements) json[std::to_string(layer)] = placement.held();
  return json;
}

namespace {

std::vector<std::vector<int32_t>> held_from_json(const Json& json, const std::string& path,
                                                 Problems& problems) {
  std::vector<std::vector<int32_t>> held;
  const auto refuse = [&](const std::string& where, const Json& value) {
    problems.add(where, fmt::format("is {}; allowed: the experts of each rank, as in [[0, 1], "
                                    "[2, 3]]",
                                    quote(value)));
  };
  if (!json.is_array() || json.empty()) {
    refuse(path, json);
    return {};
  }
  for (size_t rank = 0; rank < json.size(); ++rank) {
    held.emplace_back();
    const std::string at = fmt::format("{}[{}]", path, rank);
    if (!json[rank].is_array()) {
      refuse(at, json[rank]);
      return {};
    }
    for (const Json& expert : json[rank]) {
      if (!expert.is_number_integer() || expert < 0 || expert >= kMaxExperts) {
        refuse(at, expert);
        return {};
      }
      held.back().push_back(expert.get<int32_t>());
    }
  }
  return held;
}

}  // namespace

Placements placements_from_json(const Json& json, const std::map<int32_t, int64_t>& num_experts,
                                const std::string& source) {
  Problems problems(source);
  Placements placements;
  std::vector<std::string> wrong;
  if (!json.is_object()) {
    problems.add(fmt::format("is {}; allowed: an object of layers", quote(json)));
    problems.finish();
  }
  for (const auto& [key, value] : json.items()) {
    int32_t layer = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    const auto known = num_experts.find(layer);
    if (error != std::errc() || end != key.data() + key.size() || known == num_experts.end()) {
      problems.add(key, "is no layer with experts; allowed: the index of one");
      continue;
    }
    std::vector<std::vector<int32_t>> held = held_from_json(value, key, problems);
    if (held.empty()) continue;
    const std::string where = fmt::format("{}: layer {}", source, layer);
    std::vector<std::string> more = problems_of(held, known->second, where);
    if (more.empty()) placements.emplace(layer, ExpertPlacement(std::move(held), known->second));
    wrong.insert(wrong.end(), more.begin(), more.end());
  }
  try {
    problems.finish();
  } catch (const InvalidInput& error) {
    wrong.insert(wrong.begin(), error.problems().begin(), error.problems().end());
  }
  if (!wrong.empty()) throw InvalidInput(std::move(wrong));
  return placements;
}

std::vector<ExpertMove> moves_between(const ExpertPlacement& from, const ExpertPlacement& to) {
  PIPER_CHECK(from.num_experts() == to.num_experts() && from.num_ranks() == to.num_ranks() &&
                  from.has_one_copy() && to.has_one_copy(),
              "placements of the same experts on the same ranks, one copy each");
  std::vector<ExpertMove> moves(static_cast<size_t>(from.num_experts()));
  const auto note = [&](const ExpertPlacement& placement, auto rank_of, auto index_of) {
    for (int64_t rank = 0; rank < placement.num_ranks(); ++rank)
      for (size_t i = 0; i < placement.held(rank).size(); ++i) {
        ExpertMove& move = moves[static_cast<size_t>(placement.held(rank)[i])];
        move.*rank_of = static_cast<int32_t>(rank);
        move.*index_of = static_cast<int32_t>(i);
      }
  };
  note(from, &ExpertMove::from_rank, &ExpertMove::from_index);
  note(to, &ExpertMove::to_rank, &ExpertMove::to_index);
  for (size_t e = 0; e < moves.size(); ++e) moves[e].expert = static_cast<int32_t>(e);
  std::erase_if(moves, [](const ExpertMove& move) {
    return !move.changes_rank() && move.from_index == move.to_index;
  });
  return moves;
}

int64_t num_migrated(const std::vector<ExpertMove>& moves) {
  return std::ranges::count_if(moves, &ExpertMove::changes_rank);
}

}  // namespace piper::balance
