// What Parm, MoNTA and PipeMoE print, beside what is computed.
#include <doctest/doctest.h>
#include <studies/parm_sweep.h>
#include <studies/statements.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

using namespace piper;
using namespace piper::studies;

namespace {

const std::vector<ParmCell>& sweep() {
  static const std::vector<ParmCell> cells = parm_sweep();
  return cells;
}

const ParmCell& cell(const std::string& cluster, int64_t devices, int64_t mp, int64_t esp) {
  const auto found = std::ranges::find_if(sweep(), [&](const ParmCell& c) {
    return c.cluster == cluster && c.devices == devices && c.mp == mp && c.esp == esp;
  });
  REQUIRE(found != sweep().end());
  return *found;
}

const std::vector<Statement>& parm() {
  static const std::vector<Statement> list = parm_statements();
  return list;
}

std::map<Verdict, int> verdicts(const std::vector<Statement>& list, const std::string& where) {
  std::map<Verdict, int> count;
  for (const Statement& s : list)
    if (s.where.find(where) != std::string::npos) ++count[s.verdict];
  return count;
}

// A figure to four digits, as people read it: golden, so that a change of a price is noticed.
void golden(double value, double expected) {
  CHECK(value == doctest::Approx(expected).scale(0).epsilon(0.0005));
}

}  // namespace

TEST_CASE("the sweep is Table III: 4,374 layers on 8, 16 and 32 GPUs") {
  int64_t of_b = 0;
  for (const ParmCell& c : sweep())
    if (c.cluster == "rtx2080ti") of_b += c.num_layers;
  CHECK(of_b == kParmProduct);
  CHECK(sweep().size() == 36);
}

TEST_CASE("Parm's choice is at least as good as either schedule, in the mean of every cell") {
  for (const ParmCell& c : sweep()) {
    CHECK(c.best >= std::max(c.s1, c.s2));
    CHECK(c.over_worse >= 1);
    // In one node S2's gather and exchange share the links.
    CHECK((c.over_sequential > 1 + 1e-9) == (c.mp > 1 && c.cluster == "rtx2080ti"));
    CHECK(c.least <= c.best);
    CHECK(c.best <= c.most);
    CHECK(c.least_communication <= c.most_communication);
  }
}

TEST_CASE("without MP the two schedules are one; MP makes both faster over the baseline") {
  for (const char* cluster : {"rtx4090x8", "rtx2080ti"})
    for (const int64_t esp : {1, 2, 4}) {
      const ParmCell& one = cell(cluster, 8, 1, esp);
      CHECK(one.s1 == doctest::Approx(one.s2));
      CHECK(cell(cluster, 8, 2, esp).best > one.best);
      CHECK(cell(cluster, 8, 4, esp).best > cell(cluster, 8, 2, esp).best);
    }
}

TEST_CASE("golden figures of the sweep, beside the print") {
  golden(cell("rtx2080ti", 32, 4, 4).best, 5.142);    // Fig. 7: 4.91
  golden(cell("rtx2080ti", 32, 4, 4).above_four, 1);  // 0.89
  golden(cell("rtx4090x8", 8, 2, 2).best, 2.611);     // Table IV: 2.10
  golden(cell("rtx4090x8", 8, 4, 4).s2, 4.275);       // 4.12
  golden(cell("rtx2080ti", 8, 4, 4).best, 5.384);     // 5.77
  golden(cell("rtx2080ti", 16, 4, 2).s1, 4.462);      // 4.12
}

TEST_CASE("Table IV: 48 measured cells, and the three of Parm's row that contradict its own rule") {
  const auto count = verdicts(parm(), "Table IV");
  CHECK(count.at(Verdict::kHolds) + count.at(Verdict::kMiss) == 48);
  CHECK(count.at(Verdict::kMisprint) == 3);
}

TEST_CASE("Parm's formulas: five statements that its own text or tables contradict") {
  for (const char* where : {"Algorithm 1, line 2", "eq. 13", "eq. 14", "eq. 10", "VI-A"})
    CHECK(verdicts(parm(), where) == std::map<Verdict, int>{{Verdict::kMisprint, 1}});
}

TEST_CASE("every misprint and miss says why, and nothing is fitted") {
  for (const auto& list : {parm(), monta_statements(), pipemoe_statements()})
    for (const Statement& s : list) {
      CAPTURE(s.what);
      CHECK(s.verdict != Verdict::kFitted);
      CHECK((s.verdict == Verdict::kHolds) == s.cause.empty());
      CHECK((s.verdict == Verdict::kMisprint) <= !s.measured);
    }
}

TEST_CASE("MoNTA: what holds and what is misprinted") {
  const std::vector<Statement> list = monta_statements();
  CHECK(verdicts(list, "Table 8") ==
        std::map<Verdict, int>{{Verdict::kHolds, 3}, {Verdict::kMisprint, 4}});
  CHECK(verdicts(list, "eq. 13") == std::map<Verdict, int>{{Verdict::kMisprint, 1}});
  // Over its own baseline each holds, over Table 8's neither.
  for (const char* where : {"eq. 15", "eq. 16"})
    CHECK(verdicts(list, where) ==
          std::map<Verdict, int>{{Verdict::kHolds, 1}, {Verdict::kMisprint, 1}});
  // The measured choice is missed by the printed model, and by the one with published overheads.
  CHECK(verdicts(list, "Fig. 14") ==
        std::map<Verdict, int>{{Verdict::kHolds, 1}, {Verdict::kMiss, 2}});
}

TEST_CASE("PipeMoE: one misprint, and what it leaves out: the backward, and gathers") {
  const std::vector<Statement> list = pipemoe_statements();
  CHECK(verdicts(list, "repository") == std::map<Verdict, int>{{Verdict::kMisprint, 1}});
  CHECK(verdicts(list, "abstract") ==
        std::map<Verdict, int>{{Verdict::kHolds, 3}, {Verdict::kMiss, 5}});
  // 912 layers of 1,458, and that a count of its own for each pass pays.
  CHECK(verdicts(list, "FSMoE") ==
        std::map<Verdict, int>{{Verdict::kHolds, 3}, {Verdict::kMiss, 5}});
}
