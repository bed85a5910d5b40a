#include <fmt/format.h>
#include <piper/model/shared_layer.h>
#include <piper/model/trainable.h>
#include <piper/strategy/runnable.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <numeric>

namespace piper::strategy {
namespace {

// The largest divisor of n that is at most `most`.
int64_t divisor_up_to(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

// Experts of the mixture layers, 0 without any; a layer with fewer is a divisor of all in practice.
int64_t common_experts(const model::Model& model) {
  int64_t common = 0;
  for (const model::Layer& layer : model.layers)
    common = std::gcd(common, layer.feed_forward.num_experts);
  return common;
}

}  // namespace

bool runs(Precision p) { return traits(p).runs; }

std::vector<std::string> not_runnable(const Strategy& s) {
  std::vector<std::string> lines;
  if (s.mesh.tp > 1 && s.micro_batch_sequences * s.sequence / s.mesh.cp % s.mesh.tp != 0)
    lines.push_back(fmt::format(
        "'mesh.tp' is {} with {} tokens of a micro-batch: uneven shares of them are priced, not "
        "executed; allowed: a divisor",
        s.mesh.tp, s.micro_batch_sequences * s.sequence / s.mesh.cp));
  if (s.mesh.etp > 1 && deduplicates(s))
    lines.push_back(fmt::format(
        "'all_to_all' is {} beside 'mesh.etp' {}: tokens in place of their copies are priced, not "
        "executed, where ranks share an expert; allowed: any other",
        name(s.all_to_all), s.mesh.etp));
  else if (deduplicates(s) && repeats_rows(s))
    lines.push_back(fmt::format(
        "'all_to_all' is {} beside 'mesh.tp' {} without 'sequence_parallel': tokens in place of "
        "their copies are priced, not executed, where ranks route the same ones; allowed: any "
        "other, 'sequence_parallel', or 'moe_schedule' {}",
        name(s.all_to_all), s.mesh.tp, name(MoeSchedule::kParmS1)));
  if (!runs(s.precision))
    lines.push_back(
        fmt::format("'precision' is {}: it is priced, not executed", name(s.precision)));
  return lines;
}

std::vector<std::string> not_divisible_by_tp(const Strategy& s, const model::Model& model) {
  std::vector<std::string> lines;
  for (const std::string& line : model::undividable(model, s.mesh.tp))
    lines.push_back(fmt::format("'mesh.tp' is {}: {}", s.mesh.tp, line));
  return lines;
}

std::vector<std::string> not_runnable(const Strategy& s, const model::Model& model) {
  std::vector<std::string> lines = not_runnable(s);
  const std::vector<std::string> more = not_divisible_by_tp(s, model);
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

std::vector<std::string> untrainable(const model::Model& model, const Strategy& s) {
  std::vector<std::string> lines = model::untrainable(model, s.sequence);
  const std::vector<std::string> more = not_runnable(s, model);
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

Strategy nearest_runnable(const Strategy& s, const model::Model& model) {
  if (not_runnable(s, model).empty()) return s;
  Strategy r = s;
  // Ranks may share matrices where they can divide tokens as well.
  const bool shares = s.mesh.tp > 1 && s.sequence % s.mesh.ranks_per_sequence() == 0 &&
                      model::undividable(model, s.mesh.tp).empty();
  const int64_t tp = shares ? s.mesh.tp : 1, cp = s.mesh.cp;
  const int64_t world = s.mesh.world() / (tp * cp);  // but for those
  r.predicted = nullptr;
  r.sequence_parallel = shares && s.sequence_parallel;
  if (!shares && needs_replicated_tokens(s.moe_schedule)) {
    r.moe_schedule = MoeSchedule::kPlain;
    r.moe_chunks = 1;
  }
  if (!runs(r.precision)) r.precision = Precision::kBf16;
  // dp may be at most what the batch feeds; what is left over deepens the pipeline.
  int64_t pp = s.mesh.pp;
  while (pp < model.num_layers() &&
         (world % pp != 0 || s.global_batch_sequences % (world / pp) != 0))
    ++pp;
  if (world % pp != 0 || s.global_batch_sequences % (world / pp) != 0) pp = s.mesh.pp;
  const int64_t dp = world / pp;
  const int64_t experts = common_experts(model), members = dp * tp * cp;
  // Ranks that share an expert stay where they can; else they hold experts of their own.
  const int64_t etp = experts == 0 || deduplicates(s) ? 1 : std::gcd(s.mesh.etp, members),
                ep = s.mesh.ranks_per_expert_set() / etp;
  r.mesh = {.pp = pp,
            .ep = experts == 0 ? 1 : divisor_up_to(std::gcd(members / etp, experts), ep),
            .dp = dp,
            .vpp = s.mesh.vpp,
            .etp = etp,
            .tp = tp,
            .cp = cp};
  if (traits(r.moe_schedule).gathers_tokens &&
      (r.mesh.etp == 1 || (cp > 1 && tp % r.mesh.etp != 0)))
    r.moe_schedule = MoeSchedule::kPlain;
  if (r.mesh.ep == 1 || r.redundant_experts % r.mesh.ep != 0) r.redundant_experts = 0;
  if (r.zero >= 2) r.reduction_start = ReductionStart::kReady;
  if (cp == 1) r.context_exchange = ContextExchange::kRing;
  if (deduplicates(r) && repeats_rows(r)) r.all_to_all = AllToAll::kFlat;
  if (pp != s.mesh.pp) {
    r.layers_per_stage = even_split(model.num_layers(), pp);
    if (!r.recompute_per_stage.empty()) r.recompute = std::ranges::max(s.recompute_per_stage);
    r.recompute_per_stage.clear();
  }
  if (r.mesh.ep == 1 && r.mesh.etp == 1) {  // nothing travels
    r.moe_schedule = MoeSchedule::kPlain;
    r.moe_chunks = 1;
  }
  if (traits(r.moe_schedule).groups_peers) {
    if (r.mesh.ep == 1 || traits(r.all_to_all).forwards)
      r.moe_schedule = MoeSchedule::kChunked;
    else
      r.moe_chunks = std::min(r.moe_chunks, r.mesh.ep);
  }
  r.global_batch_sequences = std::max(s.global_batch_sequences / dp, int64_t{1}) * dp;
  r.micro_batch_sequences = divisor_up_to(r.global_batch_sequences / dp, s.micro_batch_sequences);
  r.num_micro_batches = r.global_batch_sequences / dp / r.micro_batch_sequences;
  for (const Contradiction& c : contradictions(r, model))
    if (c.key == "expert_compression")
      r.expert_compression = 1;
    else if (c.key == "pad_to_capacity")
      r.capacity.pads = false;
  // One chunk a rank where the schedule does not run with so many stages and micro-batches.
  if (pp != s.mesh.pp || !contradictions(r, model).empty()) {
    if (r.mesh.vpp > 1)
      r.schedule =
          pairs_share_layers(r.schedule) ? PipelineSchedule::k1F1BPairs : PipelineSchedule::k1F1B;
    r.mesh.vpp = 1;
    if (std::ssize(r.layers_per_stage) != pp)
      r.layers_per_stage = even_split(model.num_layers(), pp);
  }
  return r;
}

}  // namespace piper::strategy
