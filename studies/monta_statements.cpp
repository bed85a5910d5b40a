#include <studies/paper/monta_expansion.h>
#include <studies/paper/monta_memory.h>
#include <studies/paper/monta_overheads.h>
#include <studies/statement_list.h>

#include <array>
#include <string>

namespace piper::studies {
namespace {

namespace monta = paper::monta;
using monta::Efficiencies;

constexpr double kOneDigit = 0.0005;  // thousandths of a millisecond are printed

// The efficiencies that Table 8 and its text print at 8K.
constexpr Efficiencies kWhole{.all_to_all = 0.633, .all_gather = 0.776};
constexpr Efficiencies kWholeText{.all_to_all = 0.632, .all_gather = 0.776};
constexpr Efficiencies kChunk{.all_to_all = 0.427, .all_gather = 0.726, .copy = 0.8};

monta::ChunkTimes times(const Efficiencies& reached, int64_t num_chunks) {
  return monta::chunk_times(monta::kTable8, monta::published_bandwidths(), reached, num_chunks);
}

double baseline(double efficiency) {
  return monta::baseline_seconds(monta::kTable8, monta::published_bandwidths(),
                                 {.all_to_all = efficiency});
}

void table_8(StatementList& list) {
  const auto row = [&](const char* what, double printed, double seconds, const char* cause = "") {
    list.exact(what, "Table 8", printed, 1e3 * seconds, " ms", cause, kOneDigit);
  };
  row("baseline, all-to-all of 256 M", 6.909, baseline(0.741));
  row("O1, all-to-all of 32 M at 63.3 %", 1.012, times(kWhole, 1).all_to_all,
      "the text's 0.632 gives 1.0127, cut to 1.012");
  row("O1, all-gather of 256 M", 1.443, times(kWhole, 1).all_gather);
  row("4 chunks, all-to-all of 8 M", 0.374, times(kChunk, 4).all_to_all, "cut, not rounded");
  row("4 chunks, all-gather of 64 M", 0.385, times(kChunk, 4).all_gather, "cut, not rounded");
  row("4 chunks, copy of 64 M", 0.05, times(kChunk, 4).copy);
  list.exact("256 M of b 2, s 8K, h 8192 in bf16", "eq. 3, Table 8", 256,
             monta::exchange_bytes(2, 8192, 8192, 2) / 1e6, " MB",
             "256 MiB; the table's milliseconds take it as 256e6 bytes");
}

void monta_equations(StatementList& list) {
  list.exact("AA/AG at r1 = r2", "eq. 12", 4.0 / 7, monta::exchange_over_gather(8, 2, 8, {}), "");
  list.exact("AA/AG at 8K in 4 chunks", "Discussion", 0.979,
             monta::exchange_over_gather(8, 2, 8, kChunk), "", "4/7 x 0.726 / 0.427 is 0.972");
  list.exact("O3 over the baseline, without end of chunks", "eq. 13", 0.21,
             1 / monta::gain_bound(8, 2, 8), "", "7/32 is 0.219");
  list.exact("O1 over the baseline at 8K", "eq. 14", 0.31,
             monta::o1_seconds(times(kWholeText, 1)) / baseline(0.632), "",
             "its baseline takes r1 = 0.632, Table 8's 0.741 (0.355)");
  list.exact("O2 over the baseline at 8K", "eq. 15", 0.176,
             monta::o2_seconds(times(kChunk, 4), 4) / baseline(0.427), "");
  list.exact("O3 over the baseline at 8K", "eq. 16", 0.164,
             monta::o3_seconds(times(kChunk, 4), 4) / baseline(0.427), "");
  list.exact("O2 over the baseline of Table 8", "eq. 15", 0.176,
             monta::o2_seconds(times(kChunk, 4), 4) / baseline(0.741), "",
             "eq. 15 divides by a baseline at r1 = 0.427, 11.99 ms");
  list.exact("O3 over the baseline of Table 8", "eq. 16", 0.164,
             monta::o3_seconds(times(kChunk, 4), 4) / baseline(0.741), "",
             "eq. 16 divides by the same");
}

void searches(StatementList& list) {
  const monta::Machine a800{.bandwidths = monta::published_bandwidths(),
                            .efficiencies = monta::published_efficiencies(),
                            .least_bytes = 8e6};
  const monta::Chunks printed = monta::printed_best_chunks(monta::Level::kO3, monta::kTable8, a800);
  const monta::Chunks meant = monta::best_chunks(monta::Level::kO3, monta::kTable8, a800);
  list.exact_claim("chunks of O3 at 8K", "Algorithms 1 and 2",
                   fmt::format("{} in {:.3g} ms", printed.num_chunks, 1e3 * printed.seconds),
                   fmt::format("{} in {:.3g} ms", meant.num_chunks, 1e3 * meant.seconds), false,
                   "line 19 assigns T = T_min where T_min = T and N must be kept");
  const monta::Choice choice = monta::best_level(monta::kTable8, a800);
  list.claim("what is fastest at 8K", "Fig. 14, Algorithm 3", "O1", monta::name(choice.level),
             choice.level == monta::Level::kO1,
             "the printed model has no cost of a chunk but that of its efficiency, no conflict of "
             "gathers and copies, and no skew");
}

// Fig. 14 in 4 chunks, where the text says which level was fastest.
constexpr int64_t kChunks = 4;
constexpr std::array<int64_t, 6> kThousands{4, 8, 32, 64, 128, 256};

monta::Exchange tokens(int64_t thousands) {
  monta::Exchange exchange = monta::kTable8;
  exchange.bytes *= static_cast<double>(thousands) / 8;
  return exchange;
}

std::string levels(const monta::Overheads& overheads) {
  std::string text;
  for (const int64_t k : kThousands)
    text += fmt::format("{}{}", text.empty() ? "" : " ",
                        monta::name(monta::extended_level(tokens(k), kChunks, overheads)));
  return text;
}

void choice(StatementList& list) {
  const std::string measured = "O1 O1 O2 O2 O2 O3";
  const monta::Overheads published = monta::published_overheads();
  // The lower level is the choice from that cost on: at the shorter length, not at the longer.
  const auto chunk = [&](int64_t k) {
    return 1e3 * monta::equal_chunk_seconds(tokens(k), kChunks, published);
  };
  const auto stall = [&](int64_t k) {
    return 1e3 * monta::equal_stall_seconds(tokens(k), kChunks, published);
  };
  const std::string found = levels(published);
  list.claim(
      "fastest at 4K, 8K, 32K, 64K, 128K, 256K, with start-ups, launches and memory", "Fig. 14",
      measured, found, found == measured,
      fmt::format("it needs {:.2f} to {:.2f} ms a chunk and {:.2f} to {:.2f} ms for a gather "
                  "beside a copy; {:.3f} ms are launches, the rest has no published source",
                  chunk(8), chunk(32), stall(128), stall(256), 1e3 * published.chunk_seconds));
}

void gains(StatementList& list) {
  list.exact("largest gain of the all-to-all at B2/B1 = 8", "abstract", 8,
             monta::gain_bound(8, 2, 8), " x", "8 x needs B2/B1 of 14 and more");
  list.exact("the same at B2/B1 = 14", "abstract", 8, monta::gain_bound(8, 2, 14), " x");
  list.measured("gain of O3 at 256K, 4 chunks", "Fig. 14", 1 / 0.253, monta::gain_bound(8, 2, 8, 4),
                " x");
}

// Lists the bytes of one value of a token in one layer, and of one parameter.
void memory(StatementList& list) {
  const monta::Shape one{
      .micro_batch = 1, .sequence = 1, .hidden = 1, .num_layers = 1, .dense_parameters = 1};
  list.exact("activations of a token's value, k 1, scores apart", "eq. 2", 13 + 21,
             monta::activation_bytes(one, {}, monta::Activations::kNotParallel), " B");
  list.exact("states of a parameter", "Table 3", 16, monta::state_bytes(one, {}, 0), " B");
}

void expansion(StatementList& list) {
  for (const int64_t nodes : {16, 15})
    list.exact_claim(fmt::format("cp 2 and ep 8 with {} nodes on a switch", nodes),
                     "Cluster Expansion", "horizontal", monta::why(2, 8, nodes),
                     monta::expansion(2, 8, nodes) == monta::Expansion::kHorizontal,
                     "the rule has no case for cp < ep and a switch that is too small; Piper lays "
                     "both groups along each other, which needs 8 nodes");
}

}  // namespace

std::vector<Statement> monta_statements() {
  StatementList list;
  table_8(list);
  monta_equations(list);
  searches(list);
  choice(list);
  gains(list);
  memory(list);
  expansion(list);
  return list.take();
}

std::vector<std::string> monta_assumptions() {
  return {
      "efficiencies between the printed points of Fig. 13 by power laws, beyond them the nearest",
      "the 22 to 10 % of the all-to-all and the 13 % end to end are of a model whose batch and "
      "layers are not published, so they are not predicted"};
}

}  // namespace piper::studies
