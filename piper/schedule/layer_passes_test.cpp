#include <doctest/doctest.h>
#include <piper/schedule/layer_kind.h>
#include <piper/schedule/step.h>

#include <set>
#include <string>
#include <vector>

namespace piper::schedule {
namespace {

using strategy::Recompute;

std::vector<LayerKind> every_kind() {
  std::vector<LayerKind> kinds{LayerKind{}};
  for (const bool shared : {false, true})
    for (const bool exchanges : {false, true})
      for (const bool deduplicates : {false, true})
        kinds.push_back({.is_moe = true,
                         .has_shared = shared,
                         .exchanges = exchanges,
                         .deduplicates = deduplicates && exchanges,
                         .exchanges_counts = exchanges});
  // The same where ranks share matrices, divide tokens and gather inputs again.
  const size_t num_alone = kinds.size();
  for (size_t i = 0; i < num_alone; ++i)
    for (const bool counts : {false, true}) {
      LayerKind shared = kinds[i];
      shared.shares_matrices = shared.divides_tokens = shared.gathers_inputs_again = true;
      shared.counts_choices_over_tp = counts && shared.is_moe;
      shared.rerun.gathers = true;
      kinds.push_back(shared);
    }
  // And where ranks share the experts' matrices.
  const size_t num_whole = kinds.size();
  for (size_t i = 0; i < num_whole; ++i) {
    LayerKind parts = kinds[i];
    if (!parts.is_moe || parts.deduplicates) continue;
    parts.shares_experts = parts.counts_shared_rows = parts.rerun.gathers = true;
    kinds.push_back(parts);
  }
  // And in chunks of tokens.
  const size_t num_uncut = kinds.size();
  for (size_t i = 0; i < num_uncut; ++i) {
    LayerKind chunked = kinds[i];
    if (!chunked.is_moe || chunked.deduplicates) continue;
    chunked.moe_schedule = strategy::MoeSchedule::kChunked;
    chunked.chunks = static_cast<int16_t>(2 + i % 3);
    kinds.push_back(chunked);
  }
  // And where ranks divide rows.
  const size_t num_whole_rows = kinds.size();
  for (size_t i = 0; i < num_whole_rows; ++i) {
    LayerKind divided = kinds[i];
    if (!divided.is_moe || divided.deduplicates) continue;
    divided.divides_rows = true;
    kinds.push_back(divided);
  }
  // And where ranks share sequences.
  const size_t num_of_all_tokens = kinds.size();
  for (size_t i = 0; i < num_of_all_tokens; ++i) {
    LayerKind parts = kinds[i];
    parts.shares_sequences = parts.gathers_keys = true;
    kinds.push_back(parts);
    parts.gathers_keys = false;
    parts.ring = static_cast<int16_t>(2 + i % 4);
    kinds.push_back(parts);
  }
  return kinds;
}

using Lives = std::set<LayerSlot>;

// Runs a pass on the slots that are alive: nothing is read that is not there, written twice or
// freed twice.
void run(const std::vector<LayerTask>& tasks, Lives& alive) {
  for (const LayerTask& task : tasks) {
    for (const LayerSlot slot : task.reads) CHECK(alive.contains(slot));
    for (const LayerSlot slot : task.writes) CHECK(alive.insert(slot).second);
    for (const LayerSlot slot : task.frees) CHECK(alive.erase(slot) == 1);
  }
}

std::string text_of_tasks(const std::vector<LayerTask>& tasks) {
  std::string text_of_tasks;
  for (const LayerTask& task : tasks) {
    text_of_tasks += text_of_tasks.empty() ? "" : ", ";
    if (task.kind == graph::TaskKind::kExchangeCounts) text_of_tasks += "counts ";
    if (task.kind == graph::TaskKind::kAllToAll) text_of_tasks += "rows ";
    text_of_tasks += name(task.segment);
    if (task.is_recomputed) text_of_tasks += " again";
    if (task.chunk > 0) text_of_tasks += " " + std::to_string(task.chunk);
    if (task.is_behind_exchange) text_of_tasks += " (behind)";
    if (task.is_beside_exchange) text_of_tasks += " (beside)";
  }
  return text_of_tasks;
}

TEST_CASE("slots live from their writer to their last reader, in every kind of layer") {
  for (const LayerKind& kind : every_kind())
    for (const Recompute recompute : strategy::kRecomputes) {
      const LayerPasses passes = passes_of(layer_program(kind), recompute, kind.rerun);
      CAPTURE(text_of_tasks(passes.backward));
      Lives alive{passes.x};
      run(passes.forward, alive);
      CHECK(alive.erase(passes.output) == 1);
      CHECK(alive == Lives(passes.kept.begin(), passes.kept.end()));
      if (recompute == Recompute::kFull) CHECK(passes.kept.size() == 1);
      run(passes.recompute, alive);
      alive.insert(passes.output_gradient);
      run(passes.backward, alive);
      CHECK(alive == Lives{passes.x_gradient});
    }
}

// The same, written by hand from step.h.
TEST_CASE("a mixture with shared experts whose rows travel") {
  const LayerKind kind{
      .is_moe = true, .has_shared = true, .exchanges = true, .exchanges_counts = true};
  const auto passes = [&](Recompute recompute) {
    return passes_of(layer_program(kind), recompute);
  };
  const std::string forward =
      "attention, gate, counts gate, rows gate, shared (beside), experts, rows experts, "
      "merge";
  for (const Recompute recompute : strategy::kRecomputes)
    CHECK(text_of_tasks(passes(recompute).forward) == forward);

  CHECK(passes(Recompute::kNone).recompute.empty());
  CHECK(text_of_tasks(passes(Recompute::kNone).backward) ==
        "merge, rows experts, shared (beside), experts, rows gate, gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kAttention).backward) ==
        "merge, rows experts, shared (beside), experts, rows gate, "
        "attention again (beside), gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kExperts).backward) ==
        "merge, rows experts, shared again (beside), shared (beside), "
        "experts again (beside), experts, rows gate, gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kFull).recompute) ==
        "attention again, gate again, rows gate again, shared again (beside), "
        "experts again, rows experts again");
  CHECK(text_of_tasks(passes(Recompute::kFull).backward) ==
        text_of_tasks(passes(Recompute::kNone).backward));

  // What is added up where the experts are is not read by any backward, and does not come back
  // twice.
  LayerKind sums = kind;
  sums.deduplicates = true;
  CHECK(text_of_tasks(passes_of(layer_program(sums), Recompute::kFull).recompute) ==
        "attention again, gate again, rows gate again, shared again (beside), "
        "experts again");
}

TEST_CASE("a mixture whose experts several ranks share, and whose rows travel") {
  const LayerKind kind{.is_moe = true,
                       .exchanges = true,
                       .shares_experts = true,
                       .gathers_rows = true,
                       .counts_shared_rows = true,
                       .exchanges_counts = true,
                       .rerun = {.gathers = true}};
  const auto passes = [&](Recompute recompute) {
    return passes_of(layer_program(kind), recompute, kind.rerun);
  };
  const LayerPasses whole = passes(Recompute::kNone);
  CHECK(text_of_tasks(whole.forward) ==
        "attention, gate, counts gate, counts expert tensor collective, rows gate, expert tensor "
        "collective, experts, expert tensor collective, rows experts, merge");
  CHECK(text_of_tasks(whole.backward) ==
        "merge, rows experts, expert tensor collective, experts, expert tensor collective, rows "
        "gate, gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kExperts).backward) ==
        "merge, rows experts, expert tensor collective, expert tensor collective again, experts "
        "again (beside), experts, expert tensor collective, rows gate, gate, attention");
  // Nothing that is gathered or a part of a sum is kept.
  for (const LayerSlot slot : whole.kept) {
    CHECK(whole.slots[slot.index()].kind != SlotKind::kGathered);
    CHECK(whole.slots[slot.index()].kind != SlotKind::kPartial);
  }
}

// Those that are computed with, those on their way, and those whose hop may not be done.
TEST_CASE("a ring of any length has the keys and values of at most three other ranks at once") {
  for (const int16_t ranks : {4, 9})
    for (const Recompute recompute : strategy::kRecomputes) {
      const LayerPasses passes = layer_passes({.shares_sequences = true, .ring = ranks}, recompute);
      for (const std::vector<LayerTask>* pass :
           {&passes.forward, &passes.recompute, &passes.backward}) {
        int64_t alive = 0, most = 0;
        const auto count = [&](const LayerSlotList& slots, int64_t sign) {
          for (const LayerSlot slot : slots) {
            const ProgramSlot& of = passes.slots[slot.index()];
            if (of.kind == SlotKind::kKeysAndValues && of.writer == SegmentKind::kContext)
              alive += sign;
          }
        };
        for (const LayerTask& task : *pass) {
          count(task.writes, 1);
          most = std::max(most, alive);
          count(task.frees, -1);
        }
        CHECK(most <= 3);
        CHECK(alive == 0);
      }
    }
}

TEST_CASE("a mixture in two chunks: one's rows travel while the other is computed") {
  const LayerKind kind{.is_moe = true,
                       .has_shared = true,
                       .exchanges = true,
                       .moe_schedule = strategy::MoeSchedule::kChunked,
                       .chunks = 2,
                       .exchanges_counts = true};
  const auto passes = [&](Recompute recompute) {
    return passes_of(layer_program(kind), recompute);
  };
  CHECK(text_of_tasks(passes(Recompute::kNone).forward) ==
        "attention, gate, counts gate, rows gate 1, rows gate 2 (behind), shared (beside), "
        "experts 1 (beside), rows experts 1, experts 2 (beside), rows experts 2, merge");
  CHECK(text_of_tasks(passes(Recompute::kNone).backward) ==
        "merge, rows experts 1, rows experts 2 (behind), shared (beside), experts 1 (beside), rows "
        "gate 1, experts 2 (beside), rows gate 2, gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kExperts).backward) ==
        "merge, rows experts 1, rows experts 2 (behind), shared again (beside), shared (beside), "
        "experts again 1 (beside), experts 1 (beside), rows gate 1, experts again 2 (beside), "
        "experts 2 (beside), rows gate 2, gate, attention");
  CHECK(text_of_tasks(passes(Recompute::kFull).recompute) ==
        "attention again, gate again, rows gate again 1, rows gate again 2 (behind), shared again "
        "(beside), experts again 1 (beside), rows experts again 1, experts again 2 (beside), rows "
        "experts again 2");
}

TEST_CASE("a chunk is gathered over the ranks that share its experts while the next one travels") {
  const LayerKind kind{.is_moe = true,
                       .exchanges = true,
                       .moe_schedule = strategy::MoeSchedule::kChunked,
                       .chunks = 2,
                       .shares_experts = true,
                       .gathers_rows = true,
                       .counts_shared_rows = true,
                       .exchanges_counts = true};
  CHECK(text_of_tasks(passes_of(layer_program(kind), Recompute::kNone).forward) ==
        "attention, gate, counts gate, counts expert tensor collective, rows gate 1, expert tensor "
        "collective 1, rows gate 2 (behind), expert tensor collective 2, experts 1 (beside), "
        "expert tensor "
        "collective 1, rows experts 1, experts 2 (beside), expert tensor collective 2, rows "
        "experts 2, merge");
}

TEST_CASE("rows that ranks divide are gathered in front of merge, and of the gate's backward") {
  const LayerKind kind{.is_moe = true,
                       .exchanges = true,
                       .moe_schedule = strategy::MoeSchedule::kMontaO1,
                       .divides_rows = true,
                       .exchanges_counts = true};
  CHECK(text_of_tasks(passes_of(layer_program(kind), Recompute::kNone).forward) ==
        "attention, gate, counts gate, rows gate, experts, rows experts, divided rows, merge");
  CHECK(text_of_tasks(passes_of(layer_program(kind), Recompute::kNone).backward) ==
        "merge, rows experts, experts, rows gate, divided rows, gate, attention");
  CHECK(text_of_tasks(passes_of(layer_program(kind), Recompute::kFull).recompute) ==
        "attention again, gate again, rows gate again, experts again, rows experts again, divided "
        "rows again");
  LayerKind chunked = kind;
  chunked.moe_schedule = strategy::MoeSchedule::kMontaO2;
  chunked.chunks = 2;
  CHECK(text_of_tasks(passes_of(layer_program(chunked), Recompute::kNone).forward) ==
        "attention, gate, counts gate, rows gate 1, rows gate 2 (behind), experts 1 (beside), rows "
        "experts 1, divided rows 1, experts 2 (beside), rows experts 2, divided rows 2, merge");
  CHECK(text_of_tasks(passes_of(layer_program(chunked), Recompute::kNone).backward) ==
        "merge, rows experts 1, rows experts 2 (behind), experts 1 (beside), rows gate 1, divided "
        "rows 1, experts 2 (beside), rows gate 2, divided rows 2, gate, attention");
  chunked.moe_schedule = strategy::MoeSchedule::kParmS2;
  CHECK(text_of_tasks(passes_of(layer_program(chunked), Recompute::kNone).forward)
            .find("divided rows 2") != std::string::npos);
}

TEST_CASE("a dense layer") {
  const auto passes = [](Recompute recompute) {
    return passes_of(layer_program(LayerKind{}), recompute);
  };
  CHECK(text_of_tasks(passes(Recompute::kNone).forward) == "attention, dense mlp");
  CHECK(text_of_tasks(passes(Recompute::kAttentionAndExperts).backward) ==
        "dense mlp again, dense mlp, attention again, attention");
  CHECK(passes(Recompute::kNone).kept.size() == 4);  // x, x1 and two tapes
  CHECK(passes(Recompute::kExperts).kept.size() == 3);
}

}  // namespace
}  // namespace piper::schedule
