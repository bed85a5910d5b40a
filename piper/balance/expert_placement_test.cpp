#include <doctest/doctest.h>
#include <piper/balance/expert_placement.h>
#include <piper/base/error.h>
#include <piper/base/json.h>

using namespace piper;
using namespace piper::balance;

namespace {

std::vector<std::string> problems_of(const char* json, int64_t num_experts = 4) {
  try {
    placements_from_json(parse_json(json, "p.json"), {{3, num_experts}}, "p.json");
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a plain placement holds expert e on rank e / (E / ranks), at place e") {
  for (const int64_t ranks : {1, 2, 3, 6}) {
    CAPTURE(ranks);
    const ExpertPlacement plain = ExpertPlacement::plain(6, ranks);
    CHECK(plain.is_plain());
    CHECK(plain.is_even());
    CHECK(plain.has_one_copy());
    for (int64_t e = 0; e < 6; ++e) {
      CHECK(plain.rank_of(e) == e / (6 / ranks));
      CHECK(plain.place_of(e) == e);
    }
  }
  CHECK_THROWS_AS(ExpertPlacement::plain(6, 4), InternalError);
}

TEST_CASE("a swap exchanges two experts and leaves all others where they are") {
  const ExpertPlacement swapped = ExpertPlacement::plain(6, 3).swapped(1, 4);
  CHECK(to_text(swapped) == "0 4 | 2 3 | 1 5");
  CHECK(!swapped.is_plain());
  CHECK(swapped.rank_of(4) == 0);
  CHECK(swapped.place_of(1) == 4);
  CHECK(swapped.swapped(1, 4) == ExpertPlacement::plain(6, 3));
  // An order within a rank is a placement of its own.
  const ExpertPlacement turned = ExpertPlacement::plain(6, 3).swapped(0, 1);
  CHECK(to_text(turned) == "1 0 | 2 3 | 4 5");
  CHECK(!turned.is_plain());
}

TEST_CASE("values by expert are sorted by place, and back") {
  const ExpertPlacement placement({{2, 0}, {3, 1}}, 4);
  const std::vector<int64_t> by_expert{10, 11, 12, 13};
  CHECK(placement.by_place(by_expert) == std::vector<int64_t>{12, 10, 13, 11});
  CHECK(placement.by_expert(placement.by_place(by_expert)) == by_expert);
}

TEST_CASE("several copies of an expert have room, and are told from one copy each") {
  const ExpertPlacement replicated({{0, 1}, {1, 2}}, 3);
  CHECK(!replicated.has_one_copy());
  CHECK(!replicated.is_plain());
  CHECK(replicated.rank_of(1) == 1);  // where it stands nearer the front
  CHECK(replicated.place_of(2) == 3);
  CHECK(replicated.homes() == ExpertPlacement({{0}, {1, 2}}, 3));
  CHECK(!replicated.has_homes_first());
}

TEST_CASE("rows of an expert go to the rank's own copy, or to all copies in turn") {
  const ExpertPlacement plain = ExpertPlacement::plain(8, 4, 8);
  CHECK(to_text(plain) == "0 1 2 3 | 2 3 4 5 | 4 5 6 7 | 6 7 0 1");
  CHECK(plain.has_homes_first());
  CHECK(plain.homes() == ExpertPlacement::plain(8, 4));
  CHECK(plain.places_from(2, 0) == std::vector<int32_t>{2});
  CHECK(plain.places_from(2, 1) == std::vector<int32_t>{4});
  CHECK(plain.places_from(2, 2) == std::vector<int32_t>{2, 4});
  CHECK(plain.places_from(2, 3) == std::vector<int32_t>{4, 2});
  CHECK(plain.homes().with_copies({{2}, {0}, {0}, {0}}).copies_of(0).size() == 4);
}

TEST_CASE("moves between placements name what travels and what only changes its order") {
  const ExpertPlacement from = ExpertPlacement::plain(6, 3);
  const ExpertPlacement to({{1, 0}, {2, 5}, {4, 3}}, 6);
  const std::vector<ExpertMove> moves = moves_between(from, to);
  CHECK(moves == std::vector<ExpertMove>{
                     {0, 0, 0, 0, 1}, {1, 0, 0, 1, 0}, {3, 1, 2, 1, 1}, {5, 2, 1, 1, 1}});
  CHECK(num_migrated(moves) == 2);
  CHECK(moves_between(to, to).empty());
}

TEST_CASE("a placement as JSON comes back as it was, and is written as text") {
  const ExpertPlacement placement({{0, 5}, {2, 3}, {4, 1}}, 6);
  CHECK(to_text(placement) == "0 5 | 2 3 | 4 1");
  const Placements all{{1, placement}, {3, ExpertPlacement::plain(4, 2)}};
  CHECK(placements_from_json(to_json(all), {{1, 6}, {3, 4}}, "json") == all);
}

TEST_CASE("a bad placement is refused, one line a problem") {
  CHECK(problems_of(R"({"3": [[0, 1], [2]]})") ==
        Lines{"p.json: layer 3: no rank holds expert 3; allowed: every expert on a rank"});
  CHECK(problems_of(R"({"3": [[0, 1, 0], [2, 3]]})") ==
        Lines{"p.json: layer 3: rank 0 holds expert 0 twice; allowed: once on a rank"});
  CHECK(problems_of(R"({"3": [[0, 1, 2, 3], [4]]})") ==
        Lines{"p.json: layer 3: rank 1 holds expert 4; allowed: 0 to 3"});
  CHECK(
      problems_of(R"({"3": [[0, 1], [2, "3"]]})") ==
      Lines{"p.json: '3[1]' is \"3\"; allowed: the experts of each rank, as in [[0, 1], [2, 3]]"});
  CHECK(problems_of(R"({"3": 7, "x": []})") ==
        Lines{"p.json: '3' is 7; allowed: the experts of each rank, as in [[0, 1], [2, 3]]",
              "p.json: 'x' is no layer with experts; allowed: the index of one"});
  CHECK(problems_of(R"([[0, 1]])") == Lines{"p.json: is [[0,1]]; allowed: an object of layers"});
}
