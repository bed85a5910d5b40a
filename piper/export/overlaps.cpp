#include <fmt/format.h>
#include <piper/export/overlaps.h>

namespace piper::exporting {

Overlaps overlaps_of(const cost::TrainerProfile& priced, const model::Model& model,
                     const strategy::Strategy& s, std::vector<std::string>& differs) {
  Overlaps overlaps;
  overlaps.gradients =
      priced.hidden_gradients > 0 && (s.mesh.num_replicas() > 1 || s.mesh.edp() > 1);
  overlaps.weights = overlaps.gradients && s.zero == 1;
  if (priced.hidden_tensor > 0 && s.mesh.tp > 1) {
    overlaps.tensor = s.sequence_parallel;
    if (!overlaps.tensor)
      differs.push_back(fmt::format(
          "the price hides {:.0f} % of tensor parallelism's collectives, which Megatron Core does "
          "with sequence parallelism alone",
          100 * priced.hidden_tensor));
  }
  const bool pairs = strategy::pairs(s.schedule);
  if ((pairs || priced.hidden_exchange > 0) && s.mesh.ep > 1 && model.num_moe_layers() > 0) {
    const bool is_full = s.recompute == strategy::Recompute::kFull;
    const char* lacks = is_full ? "not under full recomputation"
                        : s.mesh.pp > 1 && s.mesh.vpp == 1
                            ? "under a pipeline with virtual stages alone"
                        : s.precision == strategy::Precision::kFp32 ? "not in fp32"
                        : s.mtp_depth > 1 ? "with one module of multi-token prediction at most"
                                          : nullptr;
    overlaps.exchange = lacks == nullptr;
    const std::string hidden = pairs ? "hides exchanges with experts behind another micro-batch"
                                     : fmt::format("hides {:.0f} % of the exchanges with experts",
                                                   100 * priced.hidden_exchange);
    if (lacks != nullptr)
      differs.push_back(fmt::format("the price {}, which Megatron Core does {}", hidden, lacks));
  }
  if (pairs && !strategy::pairs_take_turns(s))
    differs.push_back(fmt::format("schedule {} without exchanges with experts: nothing to overlap",
                                  strategy::name(s.schedule)));
  return overlaps;
}

}  // namespace piper::exporting
