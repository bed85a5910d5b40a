#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/model/count.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/strategy.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <set>

namespace piper::strategy {
namespace {

// Ranks are 32-bit ids, and tasks are counted in them too.
constexpr int64_t kMaxWorld = 1 << 24;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= number; ++d)
    if (number % d == 0) found.push_back(d);
  return found;
}

std::string list_divisors(int64_t number) {
  const std::vector<int64_t> all = divisors(number);
  if (all.size() <= 16) return fmt::format("{}", fmt::join(all, ", "));
  const std::vector<int64_t> head(all.begin(), all.begin() + 15);
  return fmt::format("{}, ..., {}", fmt::join(head, ", "), number);
}

// Counts out of range; the other checks divide and multiply, so they run only when this finds
// nothing.
std::vector<std::string> bad_counts(const Strategy& s) {
  std::vector<std::string> lines;
  const auto check = [&](const char* key, int64_t value) {
    if (value < 1 || value > kMaxCount)
      lines.push_back(
          fmt::format("'{}' is {}; allowed: an integer from 1 to {}", key, value, kMaxCount));
  };
  check("mesh.pp", s.mesh.pp);
  check("mesh.ep", s.mesh.ep);
  check("mesh.dp", s.mesh.dp);
  const auto check_degree = [&](const char* key, int64_t value) {
    if (value < 1 || value > kMaxDegree)
      lines.push_back(
          fmt::format("'{}' is {}; allowed: an integer from 1 to {}", key, value, kMaxDegree));
  };
  check_degree("mesh.vpp", s.mesh.vpp);
  check_degree("mesh.etp", s.mesh.etp);
  check_degree("mesh.tp", s.mesh.tp);
  check_degree("mesh.cp", s.mesh.cp);
  if (s.zero < 0 || s.zero > 3)
    lines.push_back(fmt::format("'zero' is {}; allowed: an integer from 0 to 3", s.zero));
  if (s.moe_chunks < 1 || s.moe_chunks > kMaxMoeChunks)
    lines.push_back(fmt::format("'moe_chunks' is {}; allowed: an integer from 1 to {}",
                                s.moe_chunks, kMaxMoeChunks));
  if (s.redundant_experts < 0 || s.redundant_experts > kMaxCount)
    lines.push_back(fmt::format("'redundant_experts' is {}; allowed: an integer from 0 to {}",
                                s.redundant_experts, kMaxCount));
  if (s.expert_compression < 1 || s.expert_compression > kMostExpertCompression)
    lines.push_back(fmt::format("'expert_compression' is {}; allowed: an integer from 1 to {}",
                                s.expert_compression, kMostExpertCompression));
  check("micro_batch_sequences", s.micro_batch_sequences);
  check("num_micro_batches", s.num_micro_batches);
  if (s.sequence < 1 || s.sequence > int64_t{1} << 32)
    lines.push_back(fmt::format("'sequence' is {}; allowed: an integer from 1 to {}", s.sequence,
                                int64_t{1} << 32));
  const double factor = s.capacity.factor;
  if (factor != 0 && !(factor >= kLeastCapacityFactor && factor <= kLargestCapacityFactor))
    lines.push_back(fmt::format("'capacity_factor' is {}; allowed: a number from {} to {}", factor,
                                kLeastCapacityFactor, kLargestCapacityFactor));
  if (s.mtp_depth < 0 || s.mtp_depth > model::kMaxMtpDepth)
    lines.push_back(fmt::format("'mtp_depth' is {}; allowed: an integer from 0 to {}", s.mtp_depth,
                                model::kMaxMtpDepth));
  else if (s.mtp_depth >= s.sequence && s.sequence >= 1)
    lines.push_back(fmt::format("'mtp_depth' is {}; allowed: less than the {} tokens of 'sequence'",
                                s.mtp_depth, s.sequence));
  return lines;
}

void check_stages(const Strategy& s, std::vector<std::string>& lines) {
  const int64_t stages = s.mesh.pp * s.mesh.vpp;
  if (static_cast<int64_t>(s.layers_per_stage.size()) != stages)
    lines.push_back(fmt::format(
        "'layers_per_stage' has {} entries; allowed: one for each of the {} stages of {}",
        s.layers_per_stage.size(), stages,
        s.mesh.vpp > 1 ? "'mesh.pp' x 'mesh.vpp'" : "'mesh.pp'"));
  if (!s.recompute_per_stage.empty() &&
      static_cast<int64_t>(s.recompute_per_stage.size()) != s.mesh.pp)
    lines.push_back(fmt::format(
        "'recompute_per_stage' has {} entries; allowed: one for each of the {} stages of 'mesh.pp'",
        s.recompute_per_stage.size(), s.mesh.pp));
  // The last stage of a pipeline may hold the head alone.
  const auto least = [&](size_t i) { return i > 0 && i + 1 == s.layers_per_stage.size() ? 0 : 1; };
  for (size_t i = 0; i < s.layers_per_stage.size(); ++i)
    if (s.layers_per_stage[i] < least(i) || s.layers_per_stage[i] > kMaxCount)
      lines.push_back(fmt::format("'layers_per_stage[{}]' is {}; allowed: an integer from 1 to {}",
                                  i, s.layers_per_stage[i], kMaxCount));
}

// Chunks a rank holds, by what the schedule does with them.
void check_schedule(const Strategy& s, std::vector<std::string>& lines) {
  const int64_t vpp = s.mesh.vpp;
  const auto wrong = [&](const std::string& allowed) {
    lines.push_back(fmt::format("'mesh.vpp' is {} with schedule {}; allowed: {}", vpp,
                                name(s.schedule), allowed));
  };
  if (is_v(s.schedule)) {
    if (vpp != 2) wrong("2, the two arms of the V");
  } else if (strategy::interleaves(s.schedule)) {
    if (vpp < 2) wrong("at least 2");
    if (s.mesh.pp < 2)
      lines.push_back(
          fmt::format("'mesh.pp' is 1 with schedule {}; allowed: at least 2", name(s.schedule)));
    if (s.num_micro_batches % s.mesh.pp != 0)
      lines.push_back(
          fmt::format("'num_micro_batches' is {} with schedule {}; allowed: a multiple of "
                      "'mesh.pp' {}",
                      s.num_micro_batches, name(s.schedule), s.mesh.pp));
  } else if (vpp != 1) {
    wrong("1; interleaved and interleaved-pairs take more");
  }
}

void check_pairs(const Strategy& s, std::vector<std::string>& lines) {
  if (strategy::pairs_share_layers(s.schedule) && s.zero == 3)
    lines.push_back(fmt::format(
        "'zero' is 3 with schedule {}, where two micro-batches compute with the same layers at "
        "once; allowed: 0 to 2, or schedule {}",
        name(s.schedule),
        name(s.mesh.pp > 1 ? PipelineSchedule::kDualPipeV : PipelineSchedule::k1F1B)));
}

// Axes within a stage against each other.
void check_axes(const Strategy& s, std::vector<std::string>& lines) {
  const Mesh& m = s.mesh;
  if (m.tp * m.cp * m.etp == 1) {
    if (m.dp % m.ep != 0)
      lines.push_back(fmt::format("'mesh.ep' is {}; allowed: a divisor of 'mesh.dp' {} ({})", m.ep,
                                  m.dp, list_divisors(m.dp)));
  } else if (m.ranks_per_stage() % (m.ep * m.etp) != 0) {
    lines.push_back(
        fmt::format("'mesh.ep' x 'mesh.etp' is {} x {}; allowed: a divisor of the {} ranks of a "
                    "stage, tp x cp x dp",
                    m.ep, m.etp, m.ranks_per_stage()));
  }
  if (s.sequence_parallel && m.tp == 1)
    lines.push_back("'sequence_parallel' is true with 'mesh.tp' 1; allowed: with tp of at least 2");
  if (s.sequence_parallel && s.sequence % (m.tp * m.cp) != 0)
    lines.push_back(
        fmt::format("'sequence' is {}; allowed: a multiple of tp x cp = {} with "
                    "'sequence_parallel'",
                    s.sequence, m.tp * m.cp));
  if (m.cp > 1 && s.mtp_depth > s.sequence / (2 * m.cp))
    lines.push_back(
        fmt::format("'mtp_depth' is {} with 'mesh.cp' {}; allowed: at most the {} tokens of a part "
                    "(sequence / 2 cp), since the last of a sequence's lie on one rank",
                    s.mtp_depth, m.cp, s.sequence / (2 * m.cp)));
  if (m.cp > 1 && s.sequence % (2 * m.cp) != 0)
    lines.push_back(
        fmt::format("'mesh.cp' is {}; allowed: with a 'sequence' that is a multiple of "
                    "2 x cp = {} (two parts a rank, so that causal work is even)",
                    m.cp, 2 * m.cp));
}

// Chunks of a mixture layer's rows.
void check_moe_chunks(const Strategy& s, std::vector<std::string>& lines) {
  const char* schedule = name(s.moe_schedule);
  const bool divides = traits(s.moe_schedule).divides_rows;
  if (!has_chunks(s.moe_schedule)) {
    if (s.moe_chunks != 1)
      lines.push_back(fmt::format(
          "'moe_chunks' is {} with 'moe_schedule' {}; allowed: 1, or 'moe_schedule' {}",
          s.moe_chunks, schedule, name(divides ? MoeSchedule::kMontaO2 : MoeSchedule::kChunked)));
    return;
  }
  if (s.mesh.ep == 1 && s.mesh.etp == 1) {
    if (s.moe_schedule != MoeSchedule::kParmS2)
      lines.push_back(
          fmt::format("'moe_schedule' is {} with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows "
                      "travel; allowed: {}",
                      schedule, name(divides ? MoeSchedule::kMontaO1 : MoeSchedule::kPlain)));
    else if (s.moe_chunks > 1)
      lines.push_back(
          fmt::format("'moe_chunks' is {} with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows travel; "
                      "allowed: 1",
                      s.moe_chunks));
  }
  if (traits(s.moe_schedule).groups_peers) {
    if (s.mesh.ep == 1 && s.mesh.etp > 1)
      lines.push_back(fmt::format(
          "'moe_schedule' is {} with 'mesh.ep' 1, where rows go to no peer; allowed: {}", schedule,
          name(MoeSchedule::kChunked)));
    else if (s.mesh.ep > 1 && s.moe_chunks > s.mesh.ep)
      lines.push_back(fmt::format(
          "'moe_chunks' is {} with 'moe_schedule' {}; allowed: at most as many groups as "
          "'mesh.ep' has ranks, {}",
          s.moe_chunks, schedule, s.mesh.ep));
    if (traits(s.all_to_all).forwards) {
      std::vector<std::string> straight;
      for (const AllToAllTraits& row : kAllToAllTraits)
        if (!row.forwards) straight.emplace_back(row.name);
      lines.push_back(fmt::format(
          "'all_to_all' is {} with 'moe_schedule' {}, which sends rows straight to each "
          "group of peers; allowed: {}, or 'moe_schedule' {}",
          name(s.all_to_all), schedule, fmt::join(straight, ", "), name(MoeSchedule::kChunked)));
    }
    return;
  }
  const int64_t tokens = s.micro_batch_sequences * s.sequence / ranks_per_routed_token_set(s);
  if (s.moe_chunks > tokens)
    lines.push_back(
        fmt::format("'moe_chunks' is {}; allowed: at most the {} tokens of a micro-batch on a rank",
                    s.moe_chunks, tokens));
}

// Every rank of an expert group has equally many slots for copies.
void check_redundant_experts(const Strategy& s, std::vector<std::string>& lines) {
  if (s.redundant_experts == 0) return;
  if (s.mesh.ep == 1)
    lines.push_back(
        fmt::format("'redundant_experts' is {} with 'mesh.ep' 1, where one rank holds all experts; "
                    "allowed: 0",
                    s.redundant_experts));
  else if (s.redundant_experts % s.mesh.ep != 0)
    lines.push_back(
        fmt::format("'redundant_experts' is {}; allowed: a multiple of 'mesh.ep' {}, as many on "
                    "every rank",
                    s.redundant_experts, s.mesh.ep));
}

// Of a layer whose experts a rank holds once.
void check_redundant_experts(const Strategy& s, const model::Model& model,
                             std::vector<std::string>& lines) {
  if (s.redundant_experts == 0 || s.mesh.ep == 1) return;
  int64_t fewest = 0;
  for (const model::Layer& layer : model.layers)
    if (const int64_t experts = layer.feed_forward.num_experts;
        experts > 0 && (fewest == 0 || experts < fewest))
      fewest = experts;
  const int64_t most = (fewest - fewest / s.mesh.ep) * s.mesh.ep;
  if (s.redundant_experts > most)
    lines.push_back(
        fmt::format("'redundant_experts' is {}; allowed: at most {}, when every rank has a copy of "
                    "each expert of the others",
                    s.redundant_experts, most));
}

// Weights that are updated in shares and sent once a step.
void check_expert_compression(const Strategy& s, std::vector<std::string>& lines) {
  if (!compresses_experts(s)) return;
  const auto refuse = [&](const std::string& where, const std::string& allowed) {
    lines.push_back(fmt::format("'expert_compression' is {} {}; allowed: {}", s.expert_compression,
                                where, allowed));
  };
  if (s.zero != 1 && s.zero != 2)
    refuse(fmt::format("with 'zero' {}, where experts' weights are not sent once a step", s.zero),
           "1, or 'zero' 1 or 2");
  if (s.mesh.ranks_per_stage() % s.mesh.ranks_per_expert_set() == 0 && s.mesh.edp() == 1)
    refuse("with one rank for each expert, which sends it to nobody",
           "1, or more ranks of a stage than 'mesh.ep' x 'mesh.etp'");
  if (s.redundant_experts > 0)
    refuse("with copies of experts, which are sent whole", "1, or 'redundant_experts' 0");
}

void check_padding(const Strategy& s, std::vector<std::string>& lines) {
  if (const std::string refusal = refusal_of_padding(s); !refusal.empty())
    lines.push_back("'pad_to_capacity' is given " + refusal);
}

// Of every layer's experts.
void check_expert_compression(const Strategy& s, const model::Model& model,
                              std::vector<std::string>& lines) {
  if (!compresses_experts(s) || s.mesh.etp < 1 ||
      s.mesh.ranks_per_stage() % s.mesh.ranks_per_expert_set() != 0 || s.mesh.edp() < 2)
    return;
  const int64_t value_bytes = s.precision == Precision::kFp32   ? 4
                              : s.precision == Precision::kFp64 ? 8
                                                                : 2;
  for (const model::Layer& layer : model.layers) {
    const model::FeedForward& f = layer.feed_forward;
    if (!f.is_moe() || f.num_experts % s.mesh.ep != 0 || f.ffn % s.mesh.etp != 0) continue;
    const int64_t elements =
        model::count_layer(model, layer).routed_experts / s.mesh.ranks_per_expert_set();
    const ResidualCode code = residual_code(s, elements, value_bytes);
    if (code.block == 0)
      lines.push_back(
          fmt::format("'expert_compression' is {}, but {} elements of a layer's experts cannot be "
                      "divided among {} ranks in blocks of {}; allowed: 1",
                      s.expert_compression, elements, s.mesh.edp(), kLeastBlock));
    else if (most_compression(code) < s.expert_compression)
      lines.push_back(fmt::format(
          "'expert_compression' is {}; allowed: at most {}, one element in blocks of "
          "{}, the largest that divide {} elements among {} ranks",
          s.expert_compression, most_compression(code), code.block, elements, s.mesh.edp()));
    else
      continue;
    return;
  }
}

// Tokens that ranks hold alike.
void check_held_tokens(const Strategy& s, std::vector<std::string>& lines) {
  if (!needs_replicated_tokens(s.moe_schedule)) return;
  const char* schedule = name(s.moe_schedule);
  if (s.mesh.tp == 1)
    lines.push_back(
        fmt::format("'moe_schedule' is {} with 'mesh.tp' 1, where no two ranks hold the same "
                    "tokens; allowed: plain, or tp of at least 2",
                    schedule));
  else if (s.sequence_parallel)
    lines.push_back(
        fmt::format("'moe_schedule' is {} with 'sequence_parallel', where every token is routed "
                    "once already; allowed: plain, or without 'sequence_parallel'",
                    schedule));
  else if (s.moe_schedule == MoeSchedule::kParmS1 && s.sequence % s.mesh.ranks_per_sequence() != 0)
    lines.push_back(
        fmt::format("'sequence' is {}; allowed: a multiple of tp x cp = {} with 'moe_schedule' {}",
                    s.sequence, s.mesh.ranks_per_sequence(), schedule));
}

// Tokens that ranks which share experts gather: whole sequences, or the same ones.
void check_gathered_tokens(const Strategy& s, std::vector<std::string>& lines) {
  if (!traits(s.moe_schedule).gathers_tokens) return;
  const char* schedule = name(s.moe_schedule);
  if (s.mesh.etp == 1)
    lines.push_back(fmt::format(
        "'moe_schedule' is {} with 'mesh.etp' 1, where no ranks share experts; allowed: "
        "plain, or etp of at least 2",
        schedule));
  else if (s.mesh.tp > 1 && s.sequence_parallel)
    lines.push_back(
        fmt::format("'moe_schedule' is {} with 'sequence_parallel', where every token is routed "
                    "once already; allowed: plain, or without 'sequence_parallel'",
                    schedule));
  else if (s.mesh.cp > 1 && s.mesh.tp % s.mesh.etp != 0)
    lines.push_back(fmt::format(
        "'moe_schedule' is {} with 'mesh.cp' {}, where ranks of 'mesh.etp' {} hold parts "
        "of one sequence; allowed: etp that divides 'mesh.tp' {}, or plain",
        schedule, s.mesh.cp, s.mesh.etp, s.mesh.tp));
  if (s.mesh.cp > 1 && s.capacity.is_limited())
    lines.push_back(
        fmt::format("'moe_schedule' is {} with 'mesh.cp' {} and a capacity, which is that of whole "
                    "sequences; allowed: without a capacity, or plain",
                    schedule, s.mesh.cp));
}

// How a mixture layer's parts follow each other.
void check_moe_schedule(const Strategy& s, std::vector<std::string>& lines) {
  if (!runs(s.moe_schedule)) {
    lines.push_back(
        fmt::format("'moe_schedule' is {}: it is priced by `piper moe` alone, not executed; "
                    "allowed: {}",
                    name(s.moe_schedule), name(traits(s.moe_schedule).nearest)));
    return;
  }
  check_moe_chunks(s, lines);
  check_held_tokens(s, lines);
  check_gathered_tokens(s, lines);
  if (deduplicates(s) && !traits(s.moe_schedule).groups_peers &&
      (has_chunks(s.moe_schedule) || traits(s.moe_schedule).divides_rows))
    lines.push_back(fmt::format(
        "'moe_schedule' is {} with 'all_to_all' {}; allowed: any other "
        "'all_to_all', or 'moe_schedule' {}",
        name(s.moe_schedule), name(s.all_to_all),
        name(traits(s.moe_schedule).divides_rows ? MoeSchedule::kParmS1 : MoeSchedule::kPlain)));
}

void check_layers(const Strategy& s, const model::Model& model, std::vector<std::string>& lines) {
  const int64_t layers = model.num_layers();
  if (s.mesh.pp > layers) {
    lines.push_back(
        fmt::format("'mesh.pp' is {}, but {} has {} layers; allowed: an integer from 1 to {}",
                    s.mesh.pp, model.name, layers, layers));
    return;
  }
  if (s.mesh.pp * s.mesh.vpp > layers) {
    lines.push_back(fmt::format(
        "'mesh.pp' x 'mesh.vpp' is {} x {}, but {} has {} layers; allowed: a product of at most {}",
        s.mesh.pp, s.mesh.vpp, model.name, layers, layers));
    return;
  }
  int64_t sum = 0;
  for (const int64_t n : s.layers_per_stage) sum += std::min(std::max<int64_t>(n, 0), kMaxCount);
  if (sum != layers)
    lines.push_back(fmt::format("'layers_per_stage' sums to {}; allowed: the {} layers of {}", sum,
                                layers, model.name));
}

// Heads are dealt to tp; with fewer key and value heads than ranks each is held by several.
void check_tensor_parallel(const Strategy& s, const model::Model& model,
                           std::vector<std::string>& lines) {
  const int64_t tp = s.mesh.tp, etp = s.mesh.etp;
  std::set<std::string> found;
  for (const model::Layer& layer : model.layers) {
    const int64_t heads = layer.attention.num_heads, ffn = layer.feed_forward.ffn;
    if (tp > 1 && heads > 0 && heads % tp != 0)
      found.insert(fmt::format("'mesh.tp' is {}; allowed: a divisor of the {} heads of {} ({})", tp,
                               heads, model.name, list_divisors(heads)));
    if (etp > 1 && layer.feed_forward.is_moe() && ffn % etp != 0)
      found.insert(
          fmt::format("'mesh.etp' is {}; allowed: a divisor of an expert's width {}", etp, ffn));
  }
  if (etp > 1 && model.num_moe_layers() == 0)
    found.insert(fmt::format("'mesh.etp' is {}, but {} is dense (no experts to divide); allowed: 1",
                             etp, model.name));
  lines.insert(lines.end(), found.begin(), found.end());
}

void check_experts(const Strategy& s, const model::Model& model, std::vector<std::string>& lines) {
  const int64_t ep = s.mesh.ep;
  if (ep == 1) return;
  std::set<int64_t> counts;
  for (const model::Layer& layer : model.layers)
    if (layer.feed_forward.is_moe()) counts.insert(layer.feed_forward.num_experts);
  if (counts.empty()) {
    lines.push_back(fmt::format(
        "'mesh.ep' is {}, but {} is dense (no experts to divide); allowed: 1", ep, model.name));
    return;
  }
  for (const int64_t experts : counts) {
    if (ep > experts)
      lines.push_back(fmt::format(
          "'mesh.ep' is {}: more ranks than the {} experts of {}; allowed: {} (further ranks hold "
          "replicas: a larger 'mesh.dp')",
          ep, experts, model.name, list_divisors(experts)));
    else if (experts % ep != 0)
      lines.push_back(
          fmt::format("'mesh.ep' is {}; allowed: a divisor of the {} experts of {} ({})", ep,
                      experts, model.name, list_divisors(experts)));
  }
}

}  // namespace

std::string refusal_of_padding(const Strategy& s) {
  if (!s.capacity.pads) return {};
  if (!s.capacity.is_limited()) return "without 'capacity_factor'; allowed: both or neither";
  if (s.mesh.cp > 1 || (s.mesh.tp > 1 && s.sequence_parallel))
    return "where ranks share the tokens of a sequence, whose capacity is that of all of them; "
           "allowed: 'mesh.cp' 1 and no 'sequence_parallel'";
  if (s.moe_schedule != MoeSchedule::kPlain)
    return fmt::format("with 'moe_schedule' {}, which divides the rows; allowed: plain",
                       name(s.moe_schedule));
  if (deduplicates(s))
    return fmt::format("with 'all_to_all' {}, which sends tokens in place of rows; allowed: others",
                       name(s.all_to_all));
  if (s.redundant_experts > 0)
    return "with copies of experts, among which rows are divided; allowed: 'redundant_experts' 0";
  return {};
}

std::string refusal_of_padding(const Capacity& capacity, const model::Model& model) {
  if (!capacity.pads) return {};
  for (const model::Layer& layer : model.layers) {
    const model::FeedForward& f = layer.feed_forward;
    if (f.is_moe() &&
        capacity.factor * static_cast<double>(f.top_k) > static_cast<double>(f.num_experts))
      return fmt::format(
          "with 'capacity_factor' {}, more than all tokens of a sequence; allowed: at most the "
          "experts over top_k, {} over {}",
          capacity.factor, f.num_experts, f.top_k);
  }
  return {};
}

std::vector<std::string> contradictions(const Strategy& s) {
  std::vector<std::string> lines = bad_counts(s);
  if (!lines.empty()) return lines;
  check_axes(s, lines);
  check_moe_schedule(s, lines);
  check_redundant_experts(s, lines);
  check_expert_compression(s, lines);
  check_padding(s, lines);
  if (s.mesh.cp == 1 && s.context_exchange != ContextExchange::kRing)
    lines.push_back(
        fmt::format("'context_exchange' is {} with 'mesh.cp' 1, where no ranks share a sequence; "
                    "allowed: a larger 'mesh.cp', or without it",
                    name(s.context_exchange)));
  if (s.zero >= 2 && s.reduction_start != ReductionStart::kReady)
    lines.push_back(
        fmt::format("'reduction_start' is {} with 'zero' {}, where gradients leave as soon as they "
                    "are there; allowed: ready, or 'zero' 0 or 1",
                    name(s.reduction_start), s.zero));
  check_schedule(s, lines);
  check_pairs(s, lines);
  if (s.mesh.world() > kMaxWorld)
    lines.push_back(fmt::format(
        "{} is {} ranks; allowed: at most {}",
        s.mesh.tp * s.mesh.cp == 1 ? "'mesh.pp' x 'mesh.dp'" : "pp x tp x cp x dp of 'mesh'",
        s.mesh.world(), kMaxWorld));
  check_stages(s, lines);
  const int64_t product = s.mesh.dp * s.micro_batch_sequences * s.num_micro_batches;
  if (s.global_batch_sequences != product)
    lines.push_back(fmt::format(
        "'global_batch_sequences' is {}; allowed: 'mesh.dp' x 'micro_batch_sequences' x "
        "'num_micro_batches' = {} x {} x {} = {}",
        s.global_batch_sequences, s.mesh.dp, s.micro_batch_sequences, s.num_micro_batches,
        product));
  return lines;
}

std::vector<std::string> contradictions(const Strategy& s, const model::Model& model) {
  std::vector<std::string> lines = contradictions(s);
  if (s.mesh.pp >= 1 && s.mesh.pp <= kMaxCount && s.mesh.vpp >= 1 && s.mesh.vpp <= kMaxDegree)
    check_layers(s, model, lines);
  if (s.mesh.ep >= 1 && s.mesh.ep <= kMaxCount) check_experts(s, model, lines);
  if (s.mesh.tp >= 1 && s.mesh.etp >= 1) check_tensor_parallel(s, model, lines);
  if (s.moe_schedule != MoeSchedule::kPlain && model.num_moe_layers() == 0)
    lines.push_back(
        fmt::format("'moe_schedule' is {}, but {} is dense (no experts); allowed: plain",
                    name(s.moe_schedule), model.name));
  if (s.redundant_experts > 0 && model.num_moe_layers() == 0)
    lines.push_back(
        fmt::format("'redundant_experts' is {}, but {} is dense (no experts); allowed: 0",
                    s.redundant_experts, model.name));
  if (compresses_experts(s) && model.num_moe_layers() == 0)
    lines.push_back(
        fmt::format("'expert_compression' is {}, but {} is dense (no experts); allowed: 1",
                    s.expert_compression, model.name));
  if (s.mesh.ep >= 1 && s.mesh.ep <= kMaxCount && model.num_moe_layers() > 0) {
    check_redundant_experts(s, model, lines);
    check_expert_compression(s, model, lines);
  }
  if (s.capacity.is_limited() && model.num_moe_layers() == 0)
    lines.push_back(
        fmt::format("'capacity_factor' is {}, but {} is dense (no experts); allowed: none",
                    s.capacity.factor, model.name));
  if (const std::string refusal = refusal_of_padding(s.capacity, model); !refusal.empty())
    lines.push_back("'pad_to_capacity' is given " + refusal);
  if (model.learned_positions > 0 && s.sequence > model.learned_positions)
    lines.push_back(fmt::format("'sequence' is {}; allowed: at most the {} learned positions of {}",
                                s.sequence, model.learned_positions, model.name));
  if (s.mtp_depth != model.mtp_depth && s.mtp_depth >= 0 && s.mtp_depth <= model::kMaxMtpDepth)
    lines.push_back(fmt::format("'mtp_depth' is {}; allowed: {}, the modules of {}", s.mtp_depth,
                                model.mtp_depth, model.name));
  return lines;
}

}  // namespace piper::strategy
