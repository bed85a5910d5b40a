#include <studies/paper/hybridep.h>
#include <studies/statement_list.h>

#include <array>
#include <string>

namespace piper::studies {
namespace {

namespace hybridep = paper::hybridep;

struct Row {
  const char* name;
  double printed;  // p
  double pre_expert_ms, data_mb, expert_mb;
};
constexpr std::array kTable4{Row{"Mix-1", 0.75, 0.049, 8, 4.7}, Row{"Mix-2", 0.5, 0.049, 8, 2.35},
                             Row{"AG-only-1", 0, 0.099, 3, 0.094},
                             Row{"AG-only-2", 0, 0.099, 3, 0.047}};

hybridep::Layer layer_of(const Row& row, double pre_expert_factor) {
  return {.gpus = 8,
          .bandwidth = 128e9 / 8,
          .pre_expert_seconds = 1e-3 * row.pre_expert_ms * pre_expert_factor,
          .data_bytes = 1e6 * row.data_mb,
          .expert_bytes = 1e6 * row.expert_mb};
}

// p of the domain that the model takes; a domain of one is plain expert parallelism.
double proportion(const hybridep::Layer& layer) {
  const int64_t domain = hybridep::best_domain(layer);
  return domain == 1 ? 1 : 1 - static_cast<double>(domain) / layer.gpus;
}

void proportions(StatementList& list) {
  for (const Row& row : kTable4) {
    const auto said = [&](double p) { return fmt::format("p = {:.2f}", p); };
    const double as_printed = proportion(layer_of(row, 1)),
                 with_ten_times = proportion(layer_of(row, 10));
    const bool is_mix = row.printed > 0;
    list.exact_claim(
        fmt::format("{}, by the pre-expert time as printed", row.name), "Table IV",
        said(row.printed), said(as_printed), as_printed == row.printed,
        fmt::format(
            "with {:.2f} ms in place of {:.3f} ms the model gives p = {:.2f}, and p = {:.3f} "
            "where domains may have any size",
            10 * row.pre_expert_ms, row.pre_expert_ms, with_ten_times,
            hybridep::best_proportion(layer_of(row, 10))));
    if (is_mix)
      list.exact_claim(fmt::format("{}, with ten times that time", row.name), "Table IV",
                       said(row.printed), said(with_ten_times), with_ten_times == row.printed, "");
  }
}

struct Messages {
  int64_t gpus;
  std::array<int64_t, 6> all_to_all, all_gather;  // for domains of 1, 2, 4, ... 32
};
constexpr std::array kTable7{Messages{8, {56, 24, 8, 0}, {0, 8, 24, 56}},
                             Messages{16, {240, 112, 48, 16, 0}, {0, 16, 48, 112, 240}},
                             Messages{32, {992, 480, 224, 96, 32, 0}, {0, 32, 96, 224, 480, 992}}};

void messages(StatementList& list) {
  for (const Messages& of : kTable7)
    for (const auto& [what, travel, printed] :
         {std::tuple{"all-to-all", hybridep::Travel::kAllToAll, of.all_to_all},
          {"all-gather", hybridep::Travel::kAllGather, of.all_gather}}) {
      std::string said, counted;
      size_t i = 0;
      for (int64_t domain = 1; domain <= of.gpus; domain *= 2, ++i) {
        said += fmt::format("{}{}", i > 0 ? ", " : "", printed[i]);
        counted += fmt::format("{}{}", i > 0 ? ", " : "",
                               hybridep::num_messages({{of.gpus}, {domain}}, travel));
      }
      list.exact_claim(
          fmt::format("messages of {}, domains of 1 to {} of {} GPUs", what, of.gpus, of.gpus),
          "Table VII, Algorithm 1", said, counted, said == counted, "");
    }
}

}  // namespace

std::vector<Statement> hybridep_statements() {
  StatementList list;
  proportions(list);
  messages(list);
  return list.take();
}

std::vector<std::string> hybridep_assumptions() {
  return {
      "megabytes of 10^6, 128 Gbit/s as 16 * 10^9 bytes a second",
      "Algorithm 1 compares m with n where it prints D and E, and at every level GPUs of one "
      "worker of the level before",
      "its runs (Tables V and VI, Fig. 13 to 17) name neither the layers' sizes nor how many of "
      "them are mixtures, so they are not priced"};
}

}  // namespace piper::studies
