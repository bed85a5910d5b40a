#include <fmt/format.h>
#include <piper/export/plain_execution.h>

namespace piper::exporting {

void add_plain_execution(std::string_view software, const strategy::Strategy& s,
                         Exported& exported) {
  const auto note = [&](std::string line) { exported.differs.push_back(std::move(line)); };
  if (s.mesh.ep > 1 && s.all_to_all != strategy::AllToAll::kFlat)
    note(
        fmt::format("all-to-all {}: {} exchanges tokens by NCCL's all-to-all, or by DeepEP where "
                    "it is told to",
                    name(s.all_to_all), software));
  if (s.moe_schedule != strategy::MoeSchedule::kPlain)
    note(fmt::format("moe-schedule {}: {} runs the parts of a mixture layer one after the other",
                     name(s.moe_schedule), software));
  if (s.reduction != strategy::Reduction::kDirect)
    note(fmt::format("reduction {}: {} sums gradients as NCCL chooses", name(s.reduction),
                     software));
  if (s.expert_compression > 1)
    note(fmt::format("expert-compression {}: {} sends updated weights whole", s.expert_compression,
                     software));
  if (s.redundant_experts > 0)
    exported.cannot.push_back(fmt::format(
        "redundant-experts {}: {} holds every expert once; the nearest: --redundant-experts 0",
        s.redundant_experts, software));
}

}  // namespace piper::exporting
