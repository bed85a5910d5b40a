#include <fmt/format.h>
#include <piper/base/suggest.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/count.h>
#include <piper/validate/interpret.h>
#include <piper/validate/known_models.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

namespace piper::validate {
namespace {

using strategy::PipelineSchedule;
using strategy::Precision;
using strategy::Recompute;

struct Device {
  const char* part;  // of the lower-case device text
  const char* cluster;
};
constexpr Device kDevices[] = {{"gb300", "gb300"},    {"gb200", "gb200"},    {"b300", "b300"},
                               {"b200", "b200"},      {"h200", "dgx-h200"},  {"h800", "h800"},
                               {"h100", "dgx-h100"},  {"a800", "a800"},      {"a100", "dgx-a100"},
                               {"mi250", "frontier"}, {"4090", "rtx4090x8"}, {"2080", "rtx2080ti"}};

class Interpreter {
 public:
  Interpreter(const MeasuredRow& row, const std::string& trainer)
      : r_(row), text_(lower(row.source + " " + row.note)), trainer_(trainer) {}

  Case interpret() {
    RowModel model = model_of(r_);
    c_.model = std::move(model.model);
    c_.assumed = std::move(model.assumed);
    if (!model.not_priced.empty()) return give_up(model.not_priced);
    c_.is_moe = c_.model.num_moe_layers() > 0;
    if (!device()) return c_;
    c_.trainer = cost::load_trainer(trainer_.empty() ? trainer_name() : trainer_);
    if (!quantity()) return c_;
    if (!words()) return c_;
    if (!degrees()) return c_;
    batch();
    options();
    recompute();
    if (const auto found = strategy::contradictions(c_.strategy, c_.model); !found.empty())
      return give_up("the row contradicts itself: " + found.front().text);
    return c_;
  }

 private:
  Case give_up(std::string why) {
    c_.not_priced = std::move(why);
    return c_;
  }
  bool missing(const char* field) {
    c_.not_priced = fmt::format("'{}' is not stated", field);
    return false;
  }
  bool refuse(const char* field, const std::string& value, const char* allowed) {
    c_.not_priced = fmt::format("'{}' is '{}'; allowed: {}", field, value, allowed);
    return false;
  }

  // Texts that no rule below understands would be priced as if they said the usual.
  bool words() {
    const auto holds_any = [](const std::string& text, std::initializer_list<const char*> parts) {
      return text.empty() ||
             std::ranges::any_of(parts, [&](const char* part) { return holds(text, part); });
    };
    if (!holds_any(lower(r_.precision), {"bf16", "fp16", "fp8", "nvfp4"}))
      return refuse("precision", r_.precision, "a text with bf16, fp16, fp8, mxfp8 or nvfp4 in it");
    const std::string again = lower(r_.recompute);
    const bool is_known = again.empty() || again == "no" || again.starts_with("none") ||
                          again.starts_with("full") || again.starts_with("selective") ||
                          holds(again, "sac");
    return is_known || refuse("recompute", r_.recompute,
                              "a text that begins with none, full or selective, or names SAC");
  }

  template <class T>
  T or_assume(const std::optional<T>& stated, T fallback, const char* name) {
    if (stated) return *stated;
    c_.assumed.push_back(fmt::format("{} {}", name, fallback));
    return fallback;
  }

  // Total of a node's NICs ("800Gb/s node") instead of what the description says.
  void set_node_network(double gigabits) {
    const auto devices = static_cast<double>(c_.cluster.devices_per_node());
    constexpr double kReached = 0.9;
    for (size_t level = 1; level < c_.cluster.levels.size(); ++level) {
      cluster::Level& l = c_.cluster.levels[level];
      l.link.bytes_per_second = kReached * gigabits * 1e9 / 8 / devices;
      l.num_nics = 0;
    }
  }

  bool device() {
    const std::string text = lower(r_.gpu_type);
    if (text.empty()) return missing("gpu_type");
    for (const Device& d : kDevices) {
      if (!holds(text, d.part)) continue;
      const bool efa = std::string(d.cluster) == "dgx-h100" && holds(text_, "nanotron");
      c_.cluster = cluster::load_cluster(efa ? "h100-efa" : d.cluster);
      if (const size_t at = text.find("gb/s node"); at != std::string::npos) {
        size_t begin = at;
        while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
        if (begin < at) set_node_network(std::strtod(text.c_str() + begin, nullptr));
      }
      return true;
    }
    c_.not_priced = fmt::format("no facts for the device '{}'", r_.gpu_type);
    return false;
  }

  const char* trainer_name() {
    if (holds(text_, "nanotron")) return "nanotron";
    if (holds(text_, "torchtitan")) return "torchtitan";
    if (holds(text_, "megatron-bridge") || holds(text_, "nemo"))
      return is_recent_bridge() ? "megatron-bridge-26.06" : "megatron-bridge";
    if (holds(text_, "simumax")) return "megatron-eager";
    if (holds(text_, "vtrain") || holds(text_, "korthikanti") || holds(text_, "2205.05198") ||
        holds(text_, "april2021") || holds(text_, "sc21"))
      return "megatron-2021";
    if (holds(text_, "megascale")) return "megatron-2023";
    if (holds(text_, "parallel folding")) return "megatron-core";
    if (holds(text_, "megatron") || holds(text_, "llama 3")) return "megatron-core";
    c_.assumed.emplace_back("trainer megatron-core");
    return "megatron-core";
  }

  // "[26.06.01 NeMo Container]": from 26.06 on mixtures run in graphs with fused routing.
  bool is_recent_bridge() const {
    const size_t at = r_.source.find('[');
    if (at == std::string::npos) return false;
    return std::strtod(r_.source.c_str() + at + 1, nullptr) >= 26.06;
  }

  bool quantity() {
    if (r_.is_fit_row()) {
      c_.quantity = Quantity::kPeakBytes;
      c_.unit_scale = kGiB;
      return true;
    }
    if (!r_.measured_value) return missing("measured_value");
    if (*r_.measured_value == 0) return refuse("measured_value", "0", "a positive number");
    const std::string unit = lower(r_.unit);
    const auto is = [&](Quantity q, double scale) {
      c_.quantity = q;
      c_.unit_scale = scale;
      return true;
    };
    c_.counts_all_pairs = c_.trainer.counts_all_pairs;
    if (unit == "iteration s") return is(Quantity::kStepSeconds, 1);
    if (unit == "iteration ms") return is(Quantity::kStepSeconds, 1e-3);
    if (unit == "tokens/s/gpu") return is(Quantity::kTokensPerSecond, 1);
    if (holds(unit, "mfu")) return is(Quantity::kMfu, 0.01);
    if (holds(unit, "tflops"))
      return is(holds(unit, "incl. recompute") ? Quantity::kHardwareFlops : Quantity::kModelFlops,
                1e12);
    // Sources that print "GB" mean 2^30 bytes, as their allocator counts.
    if (holds(unit, "gib") || holds(unit, "gb")) return is(Quantity::kPeakBytes, kGiB);
    c_.not_priced = fmt::format("the unit '{}' is not known", r_.unit);
    return false;
  }

  // "FSDP", "FSDP2", "no", "2" ...
  int64_t zero() {
    const std::string text = lower(r_.zero);
    if (holds(text, "fsdp")) return holds(text, "no reshard") ? 2 : 3;
    if (text == "no") return 0;
    if (text.size() == 1 && text[0] >= '0' && text[0] <= '3') return text[0] - '0';
    const bool old = c_.trainer.name == "megatron-2021";
    return or_assume<int64_t>(std::nullopt, old ? 0 : 1, "zero");
  }

  bool degrees() {
    if (!r_.gpus) return missing("gpus");
    strategy::Mesh& m = c_.strategy.mesh;
    m.tp = or_assume<int64_t>(r_.tp, 1, "tp");
    m.pp = or_assume<int64_t>(r_.pp, 1, "pp");
    m.cp = or_assume<int64_t>(r_.cp, 1, "cp");
    const int64_t others = m.tp * m.pp * m.cp;
    if (*r_.gpus % others != 0) {
      c_.not_priced =
          fmt::format("{} devices are no multiple of tp x pp x cp = {}", *r_.gpus, others);
      return false;
    }
    m.dp = *r_.gpus / others;
    if (r_.dp && *r_.dp != m.dp)
      c_.assumed.push_back(fmt::format("dp {} (stated {})", m.dp, *r_.dp));
    m.ep = c_.is_moe ? or_assume<int64_t>(r_.ep, 1, "ep") : 1;
    if (c_.is_moe) {
      // Without folding experts are divided as attention is.
      const bool tied = holds(r_.model, "[") && !holds(r_.model, "Folding");
      m.etp = r_.etp ? *r_.etp : or_assume<int64_t>(std::nullopt, tied ? m.tp : 1, "etp");
      while (m.etp > 1 && m.ranks_per_stage() % (m.ep * m.etp) != 0) m.etp /= 2;
    }
    chunks();
    return true;
  }

  // Where interleaving is not stated: as deep as the layers divide, at most 4 chunks, where
  // Megatron would.
  void chunks() {
    strategy::Strategy& s = c_.strategy;
    const int64_t layers = c_.model.num_layers(), pp = s.mesh.pp;
    int64_t vpp = r_.vpp.value_or(1);
    if (!r_.vpp && pp > 1) {
      if (c_.trainer.interleaves)
        for (const int64_t v : {2, 3, 4})
          if (layers / pp >= v && ((layers / pp) % v == 0 || layers % pp != 0)) vpp = v;
      c_.assumed.push_back(fmt::format("vpp {}", vpp));
    }
    if (pp == 1) vpp = 1;
    vpp = std::clamp<int64_t>(vpp, 1, std::max<int64_t>(layers / pp, 1));
    s.mesh.vpp = vpp;
    s.schedule = vpp > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B;
    s.layers_per_stage = c_.trainer.splits_by_parameters && vpp == 1
                             ? split_by_parameters()
                             : strategy::even_split(layers, std::min(layers, pp * vpp));
    if (pp > 1 && layers % (pp * vpp) != 0) c_.assumed.emplace_back("layers split evenly");
  }

  // nanotron: a stage ends with the block that reaches its share of all parameters, the head
  // counted, the embedding not.
  std::vector<int64_t> split_by_parameters() const {
    const model::Model& m = c_.model;
    const auto layer = static_cast<double>(model::count_layer(m, m.layers.front()).total());
    const double head = static_cast<double>(m.vocabulary * m.hidden);
    const int64_t layers = m.num_layers(), pp = c_.strategy.mesh.pp;
    const double total = layer * static_cast<double>(layers) + head;
    std::vector<int64_t> split(static_cast<size_t>(pp), 0);
    double done = 0;
    int64_t stage = 0;
    for (int64_t i = 0; i < layers; ++i) {
      ++split[static_cast<size_t>(stage)];
      done += layer;
      const double share = total * static_cast<double>(stage + 1) / static_cast<double>(pp);
      if (done >= share * (1 - 1e-3) && stage + 1 < pp) ++stage;
    }
    // Only the last stage may hold the head alone: another takes a layer from the fullest.
    for (size_t i = split.size() - 1; i-- > 0;)
      if (split[i] == 0) {
        --*std::max_element(split.rbegin(), split.rend());  // of the fullest the last
        split[i] = 1;
      }
    return split;
  }

  // "local batch 2"
  std::optional<int64_t> local_batch() const {
    const size_t at = r_.note.find("local batch ");
    if (at == std::string::npos) return std::nullopt;
    return std::atoll(r_.note.c_str() + at + 12);
  }

  void batch() {
    strategy::Strategy& s = c_.strategy;
    s.sequence = or_assume<int64_t>(r_.sequence, 4096, "seq");
    const std::optional<int64_t> local = local_batch();
    int64_t global = local ? *local * s.mesh.dp : 0;
    if (r_.global_batch)
      global = *r_.global_batch;
    else
      global =
          or_assume<int64_t>(std::nullopt, global > 0 ? global : 16 * s.mesh.dp, "global_batch");
    const int64_t per_rank = std::max<int64_t>(1, global / s.mesh.dp);
    int64_t micro = 1;
    if (r_.micro_batch)
      micro = *r_.micro_batch;
    else
      micro =
          or_assume<int64_t>(std::nullopt, local && s.mesh.pp == 1 ? per_rank : 1, "micro_batch");
    micro = std::clamp<int64_t>(micro, 1, per_rank);
    while (per_rank % micro != 0) --micro;
    s.micro_batch_sequences = micro;
    s.num_micro_batches = per_rank / micro;
    s.global_batch_sequences = s.mesh.dp * per_rank;
    if (s.global_batch_sequences != global)
      c_.assumed.push_back(
          fmt::format("global_batch {} (stated {})", s.global_batch_sequences, global));
    if (strategy::interleaves(s.schedule) && s.num_micro_batches % s.mesh.pp != 0) {
      s.schedule = PipelineSchedule::k1F1B;
      s.mesh.vpp = 1;
      s.layers_per_stage = strategy::even_split(c_.model.num_layers(), s.mesh.pp);
      c_.assumed.emplace_back("vpp 1 (micro-batches are no multiple of pp)");
    }
  }

  void options() {
    strategy::Strategy& s = c_.strategy;
    s.model = r_.model;
    s.cluster = c_.cluster.name;
    s.zero = zero();
    if (s.zero == 2 && s.mesh.pp > 1) {
      s.zero = 1;
      c_.assumed.emplace_back("zero 1 (2 under a pipeline: gradients are summed up first)");
    }
    const std::string precision = lower(r_.precision);
    s.precision = holds(precision, "nvfp4")                                 ? Precision::kNvfp4
                  : holds(precision, "mxfp8") || holds(precision, "fp8-mx") ? Precision::kMxfp8
                  : holds(precision, "fp8")                                 ? Precision::kFp8
                                                                            : Precision::kBf16;
    if (precision.empty()) c_.assumed.emplace_back("precision bf16");
    if (!cost::unpriced(c_.cluster, s.precision).empty()) {
      c_.assumed.push_back(
          fmt::format("priced as bf16: no figures for {}", strategy::name(s.precision)));
      s.precision = Precision::kBf16;
    }
    const bool old = c_.trainer.name == "megatron-2021";
    s.sequence_parallel = s.mesh.tp > 1 && s.sequence % (s.mesh.ranks_per_sequence()) == 0 &&
                          (!old || holds(lower(r_.recompute), "sequence-parallel"));
    if (holds(text_, "token-drop") || holds(text_, "capacity"))
      if (c_.is_moe) s.capacity.factor = 1;
  }

  void recompute() {
    strategy::Strategy& s = c_.strategy;
    const std::string text = lower(r_.recompute);
    if (text.starts_with("full"))
      s.recompute = Recompute::kFull;
    else if (text.starts_with("selective") || holds(text, "sac"))
      s.recompute = Recompute::kAttention;
    else if (!text.empty())
      s.recompute = Recompute::kNone;
    else if (c_.trainer.recomputes_finely)
      c_.assumed.emplace_back("recompute none");
    else
      least_that_fits();
  }

  void least_that_fits() {
    strategy::Strategy& s = c_.strategy;
    cost::TrainerEstimator estimator(c_.model, c_.cluster, c_.trainer, s.precision, s.sequence);
    for (const Recompute r : {Recompute::kNone, Recompute::kExperts,
                              Recompute::kAttentionAndExperts, Recompute::kFull}) {
      s.recompute = r;
      if (!strategy::contradictions(s, c_.model).empty()) break;
      if (estimator.estimate(s).peak_bytes <= static_cast<double>(c_.cluster.memory_bytes)) break;
    }
    c_.assumed.push_back(
        fmt::format("recompute {} (the least that fits)", strategy::name(s.recompute)));
  }

  static constexpr double kGiB = 1024.0 * 1024 * 1024;
  const MeasuredRow& r_;
  std::string text_, trainer_;
  Case c_;
};

}  // namespace

Case interpret(const MeasuredRow& row, const std::string& trainer) {
  return Interpreter(row, trainer).interpret();
}

}  // namespace piper::validate
