#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/export/fields.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>

namespace piper::exporting {
namespace {

using strategy::Strategy;

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "yes" : "no";
  else if constexpr (std::is_enum_v<T>)
    return traits(value).name;
  else
    return fmt::format("{}", value);
}
std::string text_of(const std::vector<strategy::Recompute>& list) {
  std::vector<std::string> names;
  for (const strategy::Recompute r : list) names.emplace_back(strategy::name(r));
  return fmt::format("{}", fmt::join(names, ","));
}
std::string text_of(const std::vector<int64_t>& list) {
  return fmt::format("{}", fmt::join(list, ","));
}
std::string text_of(const std::shared_ptr<const Json>& json) { return json ? "given" : ""; }

template <class T>
Field field(const char* name, const T& value, const T& usual) {
  return {name, value == usual ? "" : text_of(value)};
}

// A letter a field, in their order: written, noted, refused, silent.
struct Row {
  Trainer trainer;
  const char* places;
};
// clang-format off
//                            names mesh     split    batch  capacity state the rest      predicted
constexpr auto kPlaces = std::to_array<Row>({
    {Trainer::kMegatron,       "ss" "wwwwwww" "wwwww" "wwww" "www" "www" "wnnnwwwnwww" "s"},
    {Trainer::kDeepSpeed,      "ss" "wwwwwww" "wwwww" "wwww" "wwn" "www" "wnnnwnnnrnw" "s"},
    {Trainer::kTorchtitan,     "ss" "wwwwwww" "wwwww" "wwww" "wnn" "www" "nnnnwwnnrnw" "s"},
    {Trainer::kNemo,           "ss" "wwwwwww" "wwwww" "wwww" "www" "www" "wnnnwwwnwww" "s"},
    {Trainer::kMegatronBridge, "ss" "wwwwwww" "wwwww" "wwww" "www" "www" "wnnnwwwnwww" "s"},
});
// clang-format on
static_assert(
    [] {
      for (size_t i = 0; i < kPlaces.size(); ++i)
        if (std::string_view(kPlaces[i].places).size() != kNumFields ||
            static_cast<size_t>(kPlaces[i].trainer) != i)
          return false;
      return kPlaces.size() == kTrainers.size();
    }(),
    "every field has its place with every trainer");

// What a trainer does instead where a field is noted, or why it refuses the field. For a field that
// is not here, the trainer makes its own choice, or has no word.
struct Instead {
  std::string_view field, does;
};
constexpr Instead kInstead[] = {
    {"all-to-all", "exchanges tokens by NCCL's all-to-all, or by DeepEP where it is told to"},
    {"moe-schedule", "runs the parts of a mixture layer one after the other"},
    {"reduction", "sums gradients as NCCL chooses"},
    {"expert-compression", "sends updated weights whole"},
    {"redundant-experts", "holds every expert once; the nearest: --redundant-experts 0"},
};

std::string what_it_does(const char* field, const char* otherwise) {
  const auto* found = std::ranges::find(kInstead, std::string_view(field), &Instead::field);
  return std::string(found == std::end(kInstead) ? otherwise : found->does);
}

}  // namespace

Fields fields_of(const Strategy& s) {
  static const Strategy kUsual;
  const auto& [model, cluster, mesh, layers, schedule, recompute, by_stage, precision, sequence,
               global_batch, micro_batch, micro_batches, capacity, zero, sequence_parallel, offload,
               placement, all_to_all, chunk_bytes, reduction, reduction_start, context_exchange,
               moe_schedule, moe_chunks, redundant, compression, mtp_depth, predicted] = s;
  const auto& [pp, ep, dp, vpp, etp, tp, cp] = mesh;
  const auto& [factor, drop, pads] = capacity;
  return {{field("model", model, kUsual.model),
           field("cluster", cluster, kUsual.cluster),
           field("pp", pp, kUsual.mesh.pp),
           field("ep", ep, kUsual.mesh.ep),
           field("dp", dp, kUsual.mesh.dp),
           field("vpp", vpp, kUsual.mesh.vpp),
           field("etp", etp, kUsual.mesh.etp),
           field("tp", tp, kUsual.mesh.tp),
           field("cp", cp, kUsual.mesh.cp),
           field("layers-per-stage", layers, kUsual.layers_per_stage),
           field("schedule", schedule, kUsual.schedule),
           field("recompute", recompute, kUsual.recompute),
           field("recompute by stage", by_stage, kUsual.recompute_per_stage),
           field("precision", precision, kUsual.precision),
           field("sequence", sequence, kUsual.sequence),
           field("global-batch", global_batch, kUsual.global_batch_sequences),
           field("micro-batch", micro_batch, kUsual.micro_batch_sequences),
           field("num-micro-batches", micro_batches, kUsual.num_micro_batches),
           field("capacity-factor", factor, kUsual.capacity.factor),
           field("drop", drop, kUsual.capacity.drop),
           field("pad-to-capacity", pads, kUsual.capacity.pads),
           field("zero", zero, kUsual.zero),
           field("sequence-parallel", sequence_parallel, kUsual.sequence_parallel),
           field("offload", offload, kUsual.offload),
           field("placement", placement, kUsual.placement),
           field("all-to-all", all_to_all, kUsual.all_to_all),
           field("all-to-all-chunk", chunk_bytes, kUsual.all_to_all_chunk_bytes),
           field("reduction", reduction, kUsual.reduction),
           field("reductions", reduction_start, kUsual.reduction_start),
           field("context-exchange", context_exchange, kUsual.context_exchange),
           field("moe-schedule", moe_schedule, kUsual.moe_schedule),
           field("moe-chunks", moe_chunks, kUsual.moe_chunks),
           field("redundant-experts", redundant, kUsual.redundant_experts),
           field("expert-compression", compression, kUsual.expert_compression),
           field("mtp-depth", mtp_depth, kUsual.mtp_depth),
           field("predicted", predicted, kUsual.predicted)}};
}

Place place_of(Trainer trainer, size_t field) {
  switch (kPlaces[static_cast<size_t>(trainer)].places[field]) {
    case 'w':
      return Place::kWritten;
    case 'n':
      return Place::kNoted;
    case 'r':
      return Place::kRefused;
    case 's':
      return Place::kSilent;
  }
  PIPER_CHECK(false, "a letter that is no place");
  return Place::kSilent;
}

void place_fields(Trainer trainer, const Strategy& strategy, Exported& exported) {
  const Fields fields = fields_of(strategy);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].value.empty()) continue;
    const auto line = [&](const char* otherwise) {
      return fmt::format("{} {}: {} {}", fields[i].name, fields[i].value, traits(trainer).software,
                         what_it_does(fields[i].name, otherwise));
    };
    const Place place = place_of(trainer, i);
    if (place == Place::kNoted) exported.differs.push_back(line("makes its own choice of it"));
    if (place == Place::kRefused) exported.cannot.push_back(line("has no word for it"));
  }
}

}  // namespace piper::exporting
