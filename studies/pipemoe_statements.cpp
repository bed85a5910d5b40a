#include <studies/chunk_sweep.h>
#include <studies/paper/pipemoe.h>
#include <studies/statement_list.h>

#include <array>
#include <string>

namespace piper::studies {
namespace {

namespace pipemoe = paper::pipemoe;
using strategy::MoeSchedule;

constexpr double kAlmostAlways = 0.9;  // "almost always" the best: within 1 % of it
constexpr double kPays = 0.01;         // of a saving in the mean

double share(int64_t part, int64_t all) {
  return static_cast<double>(part) / static_cast<double>(all);
}

void repository(StatementList& list) {
  const auto chunks = [](const pipemoe::Chunks& c) {
    return fmt::format("{} in {:.1f} ms", c.num_chunks, 1e3 * c.seconds);
  };
  const pipemoe::Layer layer =
      pipemoe::fitted_layer(8 * 1024 * 2, 4096, 8192, pipemoe::kAllToAll32, pipemoe::kProduct);
  const pipemoe::Chunks printed = pipemoe::printed_best_chunks(layer, strategy::kMaxMoeChunks);
  const pipemoe::Chunks best = pipemoe::best_chunks(layer, strategy::kMaxMoeChunks);
  list.exact_claim(
      "chunks of B 8, L 1024, M 4096, H 8192, k 2 on 32 ranks", "repository, solve_k",
      chunks(printed), chunks(best), printed.num_chunks == best.num_chunks,
      fmt::format("its second case does not ask whether an all-to-all takes longer "
                  "than the experts, which start slower here; {} chunks take {:.1f} ms",
                  printed.num_chunks, 1e3 * pipemoe::seconds(layer, printed.num_chunks)));
}

std::string percent(const Spread& s) {
  return fmt::format("{:.2f} % in the mean, {:.2f} % in 9 of 10, {:.2f} % at worst", 100 * s.mean,
                     100 * s.ninetieth, 100 * s.worst);
}

struct Named {
  const char* name;
  ChunkRange range;
};
constexpr std::array kRanges{Named{"Parm's Table III with N_ESP 1", ChunkRange::kParmWhole},
                             Named{"Parm's Table III", ChunkRange::kParm},
                             Named{"MoNTA's Fig. 14", ChunkRange::kMonta},
                             Named{"FSMoE's Table 4 on B", ChunkRange::kFsmoe}};

void pipemoe_counts(StatementList& list, const Named& of, const ChunkSweep& s) {
  const auto add = [&](const char* what, int64_t num_near, const Spread& regret,
                       const std::string& cause) {
    const double near = share(num_near, s.num_layers);
    list.claim(fmt::format("{} is the best, {} layers of {}", what, s.num_layers, of.name),
               "PipeMoE, abstract", "almost always",
               fmt::format("{:.0f} % within 1 %; longer by {}", 100 * near, percent(regret)),
               near >= kAlmostAlways, cause);
  };
  const std::string model = of.range == ChunkRange::kParmWhole
                                ? ""
                                : "; gathers over N_ESP have a stream of their own and no part in "
                                  "its model";
  add("its count", s.num_near, s.regret,
      "it is the forward's, and experts take twice as long in the backward" + model);
  add("the count of its model by both passes", s.num_near_of_both, s.regret_of_both,
      "its model has two streams" + model);
}

void passes(StatementList& list, const Named& of, MoeSchedule schedule, const ChunkSweep& s) {
  list.claim(
      fmt::format("a count of its own for each pass, {} of {}", strategy::name(schedule), of.name),
      "FSMoE, 2.3", "needed", "saves " + percent(s.saved), s.saved.mean >= kPays,
      "seconds change little around the best count");
}

}  // namespace

std::vector<Statement> pipemoe_statements() {
  StatementList list;
  repository(list);
  for (const Named& of : kRanges) {
    const ChunkSweep s = sweep_chunks(of.range, MoeSchedule::kChunked);
    pipemoe_counts(list, of, s);
    if (of.range == ChunkRange::kParmWhole) continue;
    passes(list, of, MoeSchedule::kChunked, s);
    if (of.range == ChunkRange::kFsmoe) {
      list.measured("layers whose passes have different best counts, 32 GPUs", "FSMoE, 2.3",
                    100 * share(912, kFsmoeLayers), 100 * share(s.num_apart, s.num_layers), " %");
      continue;
    }
    for (const MoeSchedule schedule : {MoeSchedule::kMontaO2, MoeSchedule::kParmS2})
      passes(list, of, schedule, sweep_chunks(of.range, schedule));
  }
  return list.take();
}

std::vector<std::string> pipemoe_assumptions() {
  return {
      "chunks from 1 to 32; `chunked`, `monta-o2` and `parm-s2` in the order of this Piper's "
      "programs",
      "PipeMoE's lines are fitted to the prices of 1, 2, 4, ... 32 chunks of the forward; "
      "gathers over the ranks that share an expert are counted as its experts'",
      "layers, degrees and clusters of Parm's Table III and MoNTA's Fig. 14 as with --paper "
      "parm and monta; of FSMoE's Table 4 k is 2, and the tokens are "
      "balanced where f is *",
      "one layer's exchanges, gathers and experts: no gate, no gradient reduction",
      "a count is the best within 1 % of the least seconds, \"almost always\" is 9 of 10, and a "
      "count "
      "of its own is needed where it saves 1 % in the mean",
      "PipeMoE's own 174 layers were not at hand, so they are not priced"};
}

}  // namespace piper::studies
