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

// What was found so far, in the words of the one who asks.
struct Found {
  NameOfKey name_of;
  std::vector<Contradiction> list;

  std::string field(std::string_view key) const { return name_of(key); }
  std::string product(std::string_view one, std::string_view other) const {
    return name_of(one) + " x " + name_of(other);
  }
  // `what` goes on where the field's name ends: "is 3; allowed: ...".
  void add(std::string key, const std::string& what) {
    std::string text = name_of(key) + " " + what;
    list.push_back({std::move(key), std::move(text)});
  }
};

std::string list_divisors(int64_t number) {
  const std::vector<int64_t> all = divisors(number);
  if (all.size() <= 16) return fmt::format("{}", fmt::join(all, ", "));
  const std::vector<int64_t> head(all.begin(), all.begin() + 15);
  return fmt::format("{}, ..., {}", fmt::join(head, ", "), number);
}

// Counts out of range; the other checks divide and multiply, so they run only when this finds
// nothing.
void check_counts(const Strategy& s, Found& found) {
  const auto check = [&](const char* key, int64_t value) {
    if (value < 1 || value > kMaxCount)
      found.add(key, fmt::format("is {}; allowed: an integer from 1 to {}", value, kMaxCount));
  };
  check("mesh.pp", s.mesh.pp);
  check("mesh.ep", s.mesh.ep);
  check("mesh.dp", s.mesh.dp);
  const auto check_degree = [&](const char* key, int64_t value) {
    if (value < 1 || value > kMaxDegree)
      found.add(key, fmt::format("is {}; allowed: an integer from 1 to {}", value, kMaxDegree));
  };
  check_degree("mesh.vpp", s.mesh.vpp);
  check_degree("mesh.etp", s.mesh.etp);
  check_degree("mesh.tp", s.mesh.tp);
  check_degree("mesh.cp", s.mesh.cp);
  if (s.zero < 0 || s.zero > 3)
    found.add("zero", fmt::format("is {}; allowed: an integer from 0 to 3", s.zero));
  if (s.moe_chunks < 1 || s.moe_chunks > kMaxMoeChunks)
    found.add("moe_chunks",
              fmt::format("is {}; allowed: an integer from 1 to {}", s.moe_chunks, kMaxMoeChunks));
  if (s.redundant_experts < 0 || s.redundant_experts > kMaxCount)
    found.add("redundant_experts", fmt::format("is {}; allowed: an integer from 0 to {}",
                                               s.redundant_experts, kMaxCount));
  if (s.expert_compression < 1 || s.expert_compression > kMostExpertCompression)
    found.add("expert_compression", fmt::format("is {}; allowed: an integer from 1 to {}",
                                                s.expert_compression, kMostExpertCompression));
  check("micro_batch_sequences", s.micro_batch_sequences);
  check("num_micro_batches", s.num_micro_batches);
  if (s.sequence < 1 || s.sequence > int64_t{1} << 32)
    found.add("sequence",
              fmt::format("is {}; allowed: an integer from 1 to {}", s.sequence, int64_t{1} << 32));
  const double factor = s.capacity.factor;
  if (factor != 0 && !(factor >= kLeastCapacityFactor && factor <= kLargestCapacityFactor))
    found.add("capacity_factor", fmt::format("is {}; allowed: a number from {} to {}", factor,
                                             kLeastCapacityFactor, kLargestCapacityFactor));
  if (s.mtp_depth < 0 || s.mtp_depth > model::kMaxMtpDepth)
    found.add("mtp_depth", fmt::format("is {}; allowed: an integer from 0 to {}", s.mtp_depth,
                                       model::kMaxMtpDepth));
  else if (s.mtp_depth >= s.sequence && s.sequence >= 1)
    found.add("mtp_depth", fmt::format("is {}; allowed: less than the {} tokens of {}", s.mtp_depth,
                                       s.sequence, found.field("sequence")));
}

void check_stages(const Strategy& s, Found& found) {
  const int64_t stages = s.mesh.pp * s.mesh.vpp;
  if (static_cast<int64_t>(s.layers_per_stage.size()) != stages)
    found.add("layers_per_stage",
              fmt::format(
                  "has {} entries; allowed: one for each of the {} stages of {}",
                  s.layers_per_stage.size(), stages,
                  s.mesh.vpp > 1 ? found.product("mesh.pp", "mesh.vpp") : found.field("mesh.pp")));
  if (!s.recompute_per_stage.empty() &&
      static_cast<int64_t>(s.recompute_per_stage.size()) != s.mesh.pp)
    found.add("recompute_per_stage",
              fmt::format("has {} entries; allowed: one for each of the {} stages of {}",
                          s.recompute_per_stage.size(), s.mesh.pp, found.field("mesh.pp")));
  // The last stage of a pipeline may hold the head alone.
  const auto least = [&](size_t i) { return i > 0 && i + 1 == s.layers_per_stage.size() ? 0 : 1; };
  for (size_t i = 0; i < s.layers_per_stage.size(); ++i)
    if (s.layers_per_stage[i] < least(i) || s.layers_per_stage[i] > kMaxCount)
      found.add(
          fmt::format("layers_per_stage[{}]", i),
          fmt::format("is {}; allowed: an integer from 1 to {}", s.layers_per_stage[i], kMaxCount));
}

// Chunks a rank holds, by what the schedule does with them.
void check_schedule(const Strategy& s, Found& found) {
  const int64_t vpp = s.mesh.vpp;
  const auto wrong = [&](const std::string& allowed) {
    found.add("mesh.vpp",
              fmt::format("is {} with schedule {}; allowed: {}", vpp, name(s.schedule), allowed));
  };
  if (is_v(s.schedule)) {
    if (vpp != 2) wrong("2, the two arms of the V");
  } else if (strategy::interleaves(s.schedule)) {
    if (vpp < 2) wrong("at least 2");
    if (s.mesh.pp < 2)
      found.add("mesh.pp",
                fmt::format("is 1 with schedule {}; allowed: at least 2", name(s.schedule)));
    if (s.num_micro_batches % s.mesh.pp != 0)
      found.add(
          "num_micro_batches",
          fmt::format("is {} with schedule {}; allowed: a multiple of {} {}", s.num_micro_batches,
                      name(s.schedule), found.field("mesh.pp"), s.mesh.pp));
  } else if (vpp != 1) {
    wrong("1; interleaved and interleaved-pairs take more");
  }
}

void check_pairs(const Strategy& s, Found& found) {
  if (strategy::pairs_share_layers(s.schedule) && s.zero == 3)
    found.add("zero", fmt::format("is 3 with schedule {}, where two micro-batches compute with the "
                                  "same layers at once; allowed: 0 to 2, or schedule {}",
                                  name(s.schedule),
                                  name(s.mesh.pp > 1 ? PipelineSchedule::kDualPipeV
                                                     : PipelineSchedule::k1F1B)));
}

// Axes within a stage against each other.
void check_axes(const Strategy& s, Found& found) {
  const Mesh& m = s.mesh;
  if (m.tp * m.cp * m.etp == 1) {
    if (m.dp % m.ep != 0)
      found.add("mesh.ep", fmt::format("is {}; allowed: a divisor of {} {} ({})", m.ep,
                                       found.field("mesh.dp"), m.dp, list_divisors(m.dp)));
  } else if (m.ranks_per_stage() % (m.ep * m.etp) != 0) {
    found.add(
        "mesh.ep",
        fmt::format("x {} is {} x {}; allowed: a divisor of the {} ranks of a stage, tp x cp x dp",
                    found.field("mesh.etp"), m.ep, m.etp, m.ranks_per_stage()));
  }
  if (s.sequence_parallel && m.tp == 1)
    found.add("sequence_parallel", fmt::format("is true with {} 1; allowed: with tp of at least 2",
                                               found.field("mesh.tp")));
  if (s.sequence_parallel && s.sequence % (m.tp * m.cp) != 0)
    found.add("sequence", fmt::format("is {}; allowed: a multiple of tp x cp = {} with {}",
                                      s.sequence, m.tp * m.cp, found.field("sequence_parallel")));
  if (m.cp > 1 && s.mtp_depth > s.sequence / (2 * m.cp))
    found.add("mtp_depth",
              fmt::format("is {} with {} {}; allowed: at most the {} tokens of a part (sequence / "
                          "2 cp), since the last of a sequence's lie on one rank",
                          s.mtp_depth, found.field("mesh.cp"), m.cp, s.sequence / (2 * m.cp)));
  if (m.cp > 1 && s.sequence % (2 * m.cp) != 0)
    found.add("mesh.cp", fmt::format("is {}; allowed: with a {} that is a multiple of 2 x cp = {} "
                                     "(two parts a rank, so that causal work is even)",
                                     m.cp, found.field("sequence"), 2 * m.cp));
}

// Chunks of a mixture layer's rows.
void check_moe_chunks(const Strategy& s, Found& found) {
  const char* schedule = name(s.moe_schedule);
  const bool divides = traits(s.moe_schedule).divides_rows;
  if (!has_chunks(s.moe_schedule)) {
    if (s.moe_chunks != 1)
      found.add("moe_chunks",
                fmt::format("is {} with {} {}; allowed: 1, or {} {}", s.moe_chunks,
                            found.field("moe_schedule"), schedule, found.field("moe_schedule"),
                            name(divides ? MoeSchedule::kMontaO2 : MoeSchedule::kChunked)));
    return;
  }
  if (s.mesh.ep == 1 && s.mesh.etp == 1) {
    if (s.moe_schedule != MoeSchedule::kParmS2)
      found.add("moe_schedule",
                fmt::format("is {} with {} 1 and {} 1, where no rows travel; allowed: {}", schedule,
                            found.field("mesh.ep"), found.field("mesh.etp"),
                            name(divides ? MoeSchedule::kMontaO1 : MoeSchedule::kPlain)));
    else if (s.moe_chunks > 1)
      found.add("moe_chunks",
                fmt::format("is {} with {} 1 and {} 1, where no rows travel; allowed: 1",
                            s.moe_chunks, found.field("mesh.ep"), found.field("mesh.etp")));
  }
  if (traits(s.moe_schedule).groups_peers) {
    if (s.mesh.ep == 1 && s.mesh.etp > 1)
      found.add("moe_schedule",
                fmt::format("is {} with {} 1, where rows go to no peer; allowed: {}", schedule,
                            found.field("mesh.ep"), name(MoeSchedule::kChunked)));
    else if (s.mesh.ep > 1 && s.moe_chunks > s.mesh.ep)
      found.add("moe_chunks",
                fmt::format("is {} with {} {}; allowed: at most as many groups as {} has ranks, {}",
                            s.moe_chunks, found.field("moe_schedule"), schedule,
                            found.field("mesh.ep"), s.mesh.ep));
    if (traits(s.all_to_all).forwards) {
      std::vector<std::string> straight;
      for (const AllToAllTraits& row : kAllToAllTraits)
        if (!row.forwards) straight.emplace_back(row.name);
      found.add("all_to_all", fmt::format("is {} with {} {}, which sends rows straight to each "
                                          "group of peers; allowed: {}, or {} {}",
                                          name(s.all_to_all), found.field("moe_schedule"), schedule,
                                          fmt::join(straight, ", "), found.field("moe_schedule"),
                                          name(MoeSchedule::kChunked)));
    }
    return;
  }
  const int64_t tokens = s.micro_batch_sequences * s.sequence / ranks_per_routed_token_set(s);
  if (s.moe_chunks > tokens)
    found.add("moe_chunks",
              fmt::format("is {}; allowed: at most the {} tokens of a micro-batch on a rank",
                          s.moe_chunks, tokens));
}

// Every rank of an expert group has equally many slots for copies.
void check_redundant_experts(const Strategy& s, Found& found) {
  if (s.redundant_experts == 0) return;
  if (s.mesh.ep == 1)
    found.add("redundant_experts",
              fmt::format("is {} with {} 1, where one rank holds all experts; allowed: 0",
                          s.redundant_experts, found.field("mesh.ep")));
  else if (s.redundant_experts % s.mesh.ep != 0)
    found.add("redundant_experts",
              fmt::format("is {}; allowed: a multiple of {} {}, as many on every rank",
                          s.redundant_experts, found.field("mesh.ep"), s.mesh.ep));
}

// A rank holds an expert once at most: the layer with the fewest experts bounds the slots.
void check_redundant_experts(const Strategy& s, const model::Model& model, Found& found) {
  if (s.redundant_experts == 0 || s.mesh.ep == 1) return;
  int64_t fewest = 0;
  for (const model::Layer& layer : model.layers)
    if (const int64_t experts = layer.feed_forward.num_experts;
        experts > 0 && (fewest == 0 || experts < fewest))
      fewest = experts;
  const int64_t most = (fewest - fewest / s.mesh.ep) * s.mesh.ep;
  if (s.redundant_experts > most)
    found.add(
        "redundant_experts",
        fmt::format(
            "is {}; allowed: at most {}, when every rank has a copy of each expert of the others",
            s.redundant_experts, most));
}

// Weights that are updated in shares and sent once a step.
void check_expert_compression(const Strategy& s, Found& found) {
  if (!compresses_experts(s)) return;
  const auto refuse = [&](const std::string& where, const std::string& allowed) {
    found.add("expert_compression",
              fmt::format("is {} {}; allowed: {}", s.expert_compression, where, allowed));
  };
  const std::string zero = found.field("zero");
  if (s.zero != 1 && s.zero != 2)
    refuse(fmt::format("with {} {}, where experts' weights are not sent once a step", zero, s.zero),
           fmt::format("1, or {} 1 or 2", zero));
  if (s.mesh.ranks_per_stage() % s.mesh.ranks_per_expert_set() == 0 && s.mesh.edp() == 1)
    refuse("with one rank for each expert, which sends it to nobody",
           "1, or more ranks of a stage than " + found.product("mesh.ep", "mesh.etp"));
  if (s.redundant_experts > 0)
    refuse("with copies of experts, which are sent whole",
           fmt::format("1, or {} 0", found.field("redundant_experts")));
}

void check_padding(const Strategy& s, Found& found) {
  if (const std::string refusal = refusal_of_padding(s, found.name_of); !refusal.empty())
    found.add("pad_to_capacity", "is given " + refusal);
}

// Checks the compression of every layer's experts.
void check_expert_compression(const Strategy& s, const model::Model& model, Found& found) {
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
      found.add("expert_compression",
                fmt::format("is {}, but {} elements of a layer's experts cannot be divided among "
                            "{} ranks in blocks of {}; allowed: 1",
                            s.expert_compression, elements, s.mesh.edp(), kLeastBlock));
    else if (most_compression(code) < s.expert_compression)
      found.add("expert_compression",
                fmt::format("is {}; allowed: at most {}, one element in blocks of {}, the largest "
                            "that divide {} elements among {} ranks",
                            s.expert_compression, most_compression(code), code.block, elements,
                            s.mesh.edp()));
    else
      continue;
    return;
  }
}

// Tokens that ranks hold alike.
void check_held_tokens(const Strategy& s, Found& found) {
  if (!needs_replicated_tokens(s.moe_schedule)) return;
  const char* schedule = name(s.moe_schedule);
  if (s.mesh.tp == 1)
    found.add("moe_schedule", fmt::format("is {} with {} 1, where no two ranks hold the same "
                                          "tokens; allowed: plain, or tp of at least 2",
                                          schedule, found.field("mesh.tp")));
  else if (s.sequence_parallel)
    found.add("moe_schedule", fmt::format("is {} with {}, where every token is routed once "
                                          "already; allowed: plain, or without {}",
                                          schedule, found.field("sequence_parallel"),
                                          found.field("sequence_parallel")));
  else if (s.moe_schedule == MoeSchedule::kParmS1 && s.sequence % s.mesh.ranks_per_sequence() != 0)
    found.add("sequence",
              fmt::format("is {}; allowed: a multiple of tp x cp = {} with {} {}", s.sequence,
                          s.mesh.ranks_per_sequence(), found.field("moe_schedule"), schedule));
}

// Tokens that ranks which share experts gather: whole sequences, or the same ones.
void check_gathered_tokens(const Strategy& s, Found& found) {
  if (!traits(s.moe_schedule).gathers_tokens) return;
  const char* schedule = name(s.moe_schedule);
  if (s.mesh.etp == 1)
    found.add(
        "moe_schedule",
        fmt::format(
            "is {} with {} 1, where no ranks share experts; allowed: plain, or etp of at least 2",
            schedule, found.field("mesh.etp")));
  else if (s.mesh.tp > 1 && s.sequence_parallel)
    found.add("moe_schedule", fmt::format("is {} with {}, where every token is routed once "
                                          "already; allowed: plain, or without {}",
                                          schedule, found.field("sequence_parallel"),
                                          found.field("sequence_parallel")));
  else if (s.mesh.cp > 1 && s.mesh.tp % s.mesh.etp != 0)
    found.add("moe_schedule",
              fmt::format("is {} with {} {}, where ranks of {} {} hold parts of one sequence; "
                          "allowed: etp that divides {} {}, or plain",
                          schedule, found.field("mesh.cp"), s.mesh.cp, found.field("mesh.etp"),
                          s.mesh.etp, found.field("mesh.tp"), s.mesh.tp));
  if (s.mesh.cp > 1 && s.capacity.is_limited())
    found.add("moe_schedule", fmt::format("is {} with {} {} and a capacity, which is that of whole "
                                          "sequences; allowed: without a capacity, or plain",
                                          schedule, found.field("mesh.cp"), s.mesh.cp));
}

// How a mixture layer's parts follow each other.
void check_moe_schedule(const Strategy& s, Found& found) {
  if (!runs(s.moe_schedule)) {
    found.add("moe_schedule",
              fmt::format("is {}: it is priced by `piper moe` alone, not executed; allowed: {}",
                          name(s.moe_schedule), name(traits(s.moe_schedule).nearest)));
    return;
  }
  check_moe_chunks(s, found);
  check_held_tokens(s, found);
  check_gathered_tokens(s, found);
  if (deduplicates(s) && !traits(s.moe_schedule).groups_peers &&
      (has_chunks(s.moe_schedule) || traits(s.moe_schedule).divides_rows))
    found.add("moe_schedule",
              fmt::format("is {} with {} {}; allowed: any other {}, or {} {}", name(s.moe_schedule),
                          found.field("all_to_all"), name(s.all_to_all), found.field("all_to_all"),
                          found.field("moe_schedule"),
                          name(traits(s.moe_schedule).divides_rows ? MoeSchedule::kParmS1
                                                                   : MoeSchedule::kPlain)));
}

void check_layers(const Strategy& s, const model::Model& model, Found& found) {
  const int64_t layers = model.num_layers();
  if (s.mesh.pp > layers) {
    found.add("mesh.pp",
              fmt::format("is {}, but {} has {} layers; allowed: an integer from 1 to {}",
                          s.mesh.pp, model.name, layers, layers));
    return;
  }
  if (s.mesh.pp * s.mesh.vpp > layers) {
    found.add(
        "mesh.pp",
        fmt::format("x {} is {} x {}, but {} has {} layers; allowed: a product of at most {}",
                    found.field("mesh.vpp"), s.mesh.pp, s.mesh.vpp, model.name, layers, layers));
    return;
  }
  int64_t sum = 0;
  for (const int64_t n : s.layers_per_stage) sum += std::min(std::max<int64_t>(n, 0), kMaxCount);
  if (sum != layers)
    found.add("layers_per_stage",
              fmt::format("sums to {}; allowed: the {} layers of {}", sum, layers, model.name));
}

// Heads are dealt to tp; with fewer key and value heads than ranks each is held by several.
void check_tensor_parallel(const Strategy& s, const model::Model& model, Found& found) {
  const int64_t tp = s.mesh.tp, etp = s.mesh.etp;
  std::set<int64_t> heads, widths;  // that are not divisible
  for (const model::Layer& layer : model.layers) {
    if (layer.attention.num_heads % tp != 0) heads.insert(layer.attention.num_heads);
    if (layer.feed_forward.is_moe() && layer.feed_forward.ffn % etp != 0)
      widths.insert(layer.feed_forward.ffn);
  }
  for (const int64_t width : widths)
    found.add("mesh.etp",
              fmt::format("is {}; allowed: a divisor of an expert's width {}", etp, width));
  if (etp > 1 && model.num_moe_layers() == 0)
    found.add("mesh.etp", fmt::format("is {}, but {} is dense (no experts to divide); allowed: 1",
                                      etp, model.name));
  for (const int64_t num : heads)
    found.add("mesh.tp", fmt::format("is {}; allowed: a divisor of the {} heads of {} ({})", tp,
                                     num, model.name, list_divisors(num)));
}

void check_experts(const Strategy& s, const model::Model& model, Found& found) {
  const int64_t ep = s.mesh.ep;
  if (ep == 1) return;
  std::set<int64_t> counts;
  for (const model::Layer& layer : model.layers)
    if (layer.feed_forward.is_moe()) counts.insert(layer.feed_forward.num_experts);
  if (counts.empty()) {
    found.add("mesh.ep", fmt::format("is {}, but {} is dense (no experts to divide); allowed: 1",
                                     ep, model.name));
    return;
  }
  for (const int64_t experts : counts) {
    if (ep > experts)
      found.add("mesh.ep", fmt::format("is {}: more ranks than the {} experts of {}; allowed: {} "
                                       "(further ranks hold replicas: a larger {})",
                                       ep, experts, model.name, list_divisors(experts),
                                       found.field("mesh.dp")));
    else if (experts % ep != 0)
      found.add("mesh.ep", fmt::format("is {}; allowed: a divisor of the {} experts of {} ({})", ep,
                                       experts, model.name, list_divisors(experts)));
  }
}

}  // namespace

std::string refusal_of_padding(const Strategy& s, NameOfKey name_of) {
  if (!s.capacity.pads) return {};
  if (!s.capacity.is_limited())
    return fmt::format("without {}; allowed: both or neither", name_of("capacity_factor"));
  if (s.mesh.cp > 1 || (s.mesh.tp > 1 && s.sequence_parallel))
    return fmt::format(
        "where ranks share the tokens of a sequence, whose capacity is that of all of them; "
        "allowed: {} 1 and no {}",
        name_of("mesh.cp"), name_of("sequence_parallel"));
  if (s.moe_schedule != MoeSchedule::kPlain)
    return fmt::format("with {} {}, which divides the rows; allowed: plain",
                       name_of("moe_schedule"), name(s.moe_schedule));
  if (deduplicates(s))
    return fmt::format("with {} {}, which sends tokens in place of rows; allowed: others",
                       name_of("all_to_all"), name(s.all_to_all));
  if (s.redundant_experts > 0)
    return fmt::format("with copies of experts, among which rows are divided; allowed: {} 0",
                       name_of("redundant_experts"));
  return {};
}

std::string refusal_of_padding(const Capacity& capacity, const model::Model& model,
                               NameOfKey name_of) {
  if (!capacity.pads) return {};
  for (const model::Layer& layer : model.layers) {
    const model::FeedForward& f = layer.feed_forward;
    if (f.is_moe() &&
        capacity.factor * static_cast<double>(f.top_k) > static_cast<double>(f.num_experts))
      return fmt::format(
          "with {} {}, more than all tokens of a sequence; allowed: at most the "
          "experts over top_k, {} over {}",
          name_of("capacity_factor"), capacity.factor, f.num_experts, f.top_k);
  }
  return {};
}

std::string quoted(std::string_view key) { return fmt::format("'{}'", key); }

std::vector<std::string> texts_of(const std::vector<Contradiction>& contradictions) {
  std::vector<std::string> texts;
  for (const Contradiction& c : contradictions) texts.push_back(c.text);
  return texts;
}

std::vector<Contradiction> contradictions(const Strategy& s, NameOfKey name_of) {
  Found found{name_of, {}};
  check_counts(s, found);
  if (!found.list.empty()) return found.list;
  check_axes(s, found);
  check_moe_schedule(s, found);
  check_redundant_experts(s, found);
  check_expert_compression(s, found);
  check_padding(s, found);
  if (s.mesh.cp == 1 && s.context_exchange != ContextExchange::kRing)
    found.add(
        "context_exchange",
        fmt::format(
            "is {} with {} 1, where no ranks share a sequence; allowed: a larger {}, or without it",
            name(s.context_exchange), found.field("mesh.cp"), found.field("mesh.cp")));
  if (s.zero >= 2 && s.reduction_start != ReductionStart::kReady)
    found.add("reduction_start", fmt::format("is {} with {} {}, where gradients leave as soon as "
                                             "they are there; allowed: ready, or {} 0 or 1",
                                             name(s.reduction_start), found.field("zero"), s.zero,
                                             found.field("zero")));
  check_schedule(s, found);
  check_pairs(s, found);
  if (s.mesh.world() > kMaxWorld)
    found.list.push_back(
        {"mesh.dp", fmt::format("{} is {} ranks; allowed: at most {}",
                                s.mesh.tp * s.mesh.cp == 1 ? found.product("mesh.pp", "mesh.dp")
                                                           : "pp x tp x cp x dp of 'mesh'",
                                s.mesh.world(), kMaxWorld)});
  check_stages(s, found);
  const int64_t product = s.mesh.dp * s.micro_batch_sequences * s.num_micro_batches;
  if (s.global_batch_sequences != product)
    found.add("global_batch_sequences",
              fmt::format("is {}; allowed: {} x {} x {} = {} x {} x {} = {}",
                          s.global_batch_sequences, found.field("mesh.dp"),
                          found.field("micro_batch_sequences"), found.field("num_micro_batches"),
                          s.mesh.dp, s.micro_batch_sequences, s.num_micro_batches, product));
  return found.list;
}

std::vector<Contradiction> contradictions(const Strategy& s, const model::Model& model,
                                          NameOfKey name_of) {
  Found found{name_of, contradictions(s, name_of)};
  if (s.mesh.pp >= 1 && s.mesh.pp <= kMaxCount && s.mesh.vpp >= 1 && s.mesh.vpp <= kMaxDegree)
    check_layers(s, model, found);
  if (s.mesh.ep >= 1 && s.mesh.ep <= kMaxCount) check_experts(s, model, found);
  if (s.mesh.tp >= 1 && s.mesh.etp >= 1) check_tensor_parallel(s, model, found);
  if (s.moe_schedule != MoeSchedule::kPlain && model.num_moe_layers() == 0)
    found.add("moe_schedule", fmt::format("is {}, but {} is dense (no experts); allowed: plain",
                                          name(s.moe_schedule), model.name));
  if (s.redundant_experts > 0 && model.num_moe_layers() == 0)
    found.add("redundant_experts", fmt::format("is {}, but {} is dense (no experts); allowed: 0",
                                               s.redundant_experts, model.name));
  if (compresses_experts(s) && model.num_moe_layers() == 0)
    found.add("expert_compression", fmt::format("is {}, but {} is dense (no experts); allowed: 1",
                                                s.expert_compression, model.name));
  if (s.mesh.ep >= 1 && s.mesh.ep <= kMaxCount && model.num_moe_layers() > 0) {
    check_redundant_experts(s, model, found);
    check_expert_compression(s, model, found);
  }
  if (s.capacity.is_limited() && model.num_moe_layers() == 0)
    found.add("capacity_factor", fmt::format("is {}, but {} is dense (no experts); allowed: none",
                                             s.capacity.factor, model.name));
  if (const std::string refusal = refusal_of_padding(s.capacity, model, found.name_of);
      !refusal.empty())
    found.add("pad_to_capacity", "is given " + refusal);
  if (model.learned_positions > 0 && s.sequence > model.learned_positions)
    found.add("sequence", fmt::format("is {}; allowed: at most the {} learned positions of {}",
                                      s.sequence, model.learned_positions, model.name));
  if (s.mtp_depth != model.mtp_depth && s.mtp_depth >= 0 && s.mtp_depth <= model::kMaxMtpDepth)
    found.add("mtp_depth", fmt::format("is {}; allowed: {}, the modules of {}", s.mtp_depth,
                                       model.mtp_depth, model.name));
  return found.list;
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found, above;
  for (int64_t d = 1; d <= number / d; ++d)
    if (number % d == 0) {
      found.push_back(d);
      if (d != number / d) above.push_back(number / d);
    }
  found.insert(found.end(), above.rbegin(), above.rend());
  return found;
}

}  // namespace piper::strategy
