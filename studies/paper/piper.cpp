#include <piper/base/error.h>
#include <studies/paper/piper.h>
#include <studies/real.h>

#include <algorithm>

namespace piper::studies::paper {
namespace {

// Activations of one layer per GPU, the experts' divided by ep: the bracket that eq. 2-5 share.
double activations(const PaperModel& model, const Batch& batch, int64_t ep,
                   const Options& options) {
  const LayerBytes layer = table_iii(model, batch, options);
  return layer.attention_activations + layer.expert_activations / real(ep);
}

double state(const PaperModel& model, int64_t ep) {
  const LayerBytes layer = table_iii(model, {}, {});
  return layer.attention_state + layer.expert_state / real(ep);
}

Batch micro_batch(const Batch& batch, Degrees degrees, double alpha) {
  PIPER_CHECK(alpha > 0, "alpha is the number of micro-batches a stage");
  return {.sequences = batch.sequences / (alpha * real(degrees.pp)), .sequence = batch.sequence};
}

}  // namespace

PaperModel from_model(const model::Model& model) {
  PIPER_CHECK(!model.layers.empty(), "a model without layers");
  auto layer = std::find_if(model.layers.begin(), model.layers.end(),
                            [](const model::Layer& l) { return l.feed_forward.is_moe(); });
  if (layer == model.layers.end()) layer = model.layers.begin();
  const model::FeedForward& ffn = layer->feed_forward;
  return {.hidden = model.hidden,
          .num_layers = model.num_layers(),
          .num_heads = layer->attention.num_heads,
          .num_experts = ffn.is_moe() ? ffn.num_experts : 1,
          .top_k = ffn.is_moe() ? ffn.top_k : 1,
          .expert_ffn = ffn.ffn,
          .num_matrices = ffn.num_matrices};
}

double num_parameters(const PaperModel& m) {
  return real(m.num_layers) *
         (4 * real(m.hidden) * real(m.hidden) +
          real(m.num_matrices) * real(m.num_experts) * real(m.hidden) * real(m.expert_ffn));
}

LayerBytes table_iii(const PaperModel& m, const Batch& batch, const Options& options) {
  const double b = batch.sequences, s = real(batch.sequence);
  const double d = real(m.hidden), f = real(m.expert_ffn), h = real(m.num_heads);
  const double scores = options.flash_attention ? 2 * b * h * s : 4 * b * h * s * s;
  return {.attention_state = kBytesPerParameter * 4 * d * d,
          .expert_state = kBytesPerParameter * real(m.num_matrices) * real(m.num_experts) * d * f,
          .attention_activations = 12 * b * s * d + scores,
          .expert_activations = 2 * b * s * real(m.top_k) * (options.ffn_values * f + d)};
}

double memory_one_device(const PaperModel& model, const Batch& batch, const Options& options) {
  return real(model.num_layers) * table_iii(model, batch, options).total();
}

double memory_expert_parallel(const PaperModel& model, const Batch& batch, int64_t ep,
                              const Options& options) {
  return real(model.num_layers) * (state(model, ep) + activations(model, batch, ep, options));
}

double memory_gpipe(const PaperModel& model, const Batch& batch, Degrees degrees,
                    const Options& options) {
  return memory_expert_parallel(model, batch, degrees.ep, options) / real(degrees.pp);
}

double memory_1f1b(const PaperModel& model, const Batch& batch, Degrees degrees, double alpha,
                   int64_t stage, const Options& options) {
  PIPER_CHECK(stage >= 0 && stage < degrees.pp, "no such stage");
  const Batch micro = micro_batch(batch, degrees, alpha);
  return real(model.num_layers) / real(degrees.pp) *
         (state(model, degrees.ep) +
          real(degrees.pp - stage) * activations(model, micro, degrees.ep, options));
}

double memory_difference_1f1b(const PaperModel& model, const Batch& batch, Degrees degrees,
                              double alpha, const Options& options) {
  const Batch micro = micro_batch(batch, degrees, alpha);
  return real(model.num_layers) * real(degrees.pp - 1) / real(degrees.pp) *
         activations(model, micro, degrees.ep, options);
}

double dispatch_bytes(const PaperModel& model, const Batch& batch, int64_t ep) {
  return 2 * batch.sequences * real(batch.sequence) * real(model.top_k) * real(model.hidden) /
         real(ep);
}

double all_to_all_seconds(const PaperModel& model, const Batch& batch, int64_t ep,
                          double nic_bytes_per_second) {
  return all_to_all_seconds(model, batch, ep, nic_bytes_per_second, 1);
}

double all_to_all_seconds(const PaperModel& model, const Batch& batch, int64_t ep,
                          double nic_bytes_per_second, double gpus_per_nic) {
  return 2 * dispatch_bytes(model, batch, ep) * gpus_per_nic / nic_bytes_per_second;
}

double stage_message_bytes(const PaperModel& model, const Batch& batch) {
  return 2 * batch.sequences * real(batch.sequence) * real(model.hidden);
}

std::vector<int> violated_equations(const PaperModel& model, const Machine& machine,
                                    Degrees degrees, const Load& load) {
  const auto [pp, ep] = degrees;
  std::vector<int> violated;
  if (pp * ep != machine.num_devices) violated.push_back(7);
  if (model.num_experts % ep != 0) violated.push_back(8);
  if (pp > model.num_layers) violated.push_back(9);
  if (ep > machine.gpus_per_node * machine.nodes_per_domain) violated.push_back(10);
  if (machine.memory_bytes > 0 &&
      memory_1f1b(model, load.batch, degrees, load.alpha, 0, load.options) > machine.memory_bytes)
    violated.push_back(11);
  return violated;
}

std::vector<Degrees> admitted(const PaperModel& model, const Machine& machine, const Load& load) {
  std::vector<Degrees> list;
  for (int64_t pp = 1; pp <= std::min(model.num_layers, machine.num_devices); ++pp) {
    const Degrees degrees{.pp = pp, .ep = machine.num_devices / pp};
    if (violated_equations(model, machine, degrees, load).empty()) list.push_back(degrees);
  }
  return list;
}

Mfu mfu(double model_flops, double peak_flops_per_second, int64_t num_devices,
        double compute_seconds, double exposed_seconds) {
  return {.hardware_efficiency =
              model_flops / (peak_flops_per_second * real(num_devices) * compute_seconds),
          .compute_fraction = 1 - exposed_seconds / (compute_seconds + exposed_seconds)};
}

double migration_bytes(const PaperModel& model, int64_t ep) {
  return table_iii(model, {}, {}).expert_state / real(ep);
}

double MigrationRow::size() const {
  return migration_bytes(shape, 8) / (unit == "GiB" ? 1073741824.0 : 1e9);
}

double MigrationRow::milliseconds() const { return size() / 50 * 1000; }

const std::vector<MigrationRow>& table_iv() {
  const auto shape = [](int64_t experts, int64_t hidden, int64_t ffn) {
    return PaperModel{.hidden = hidden, .num_layers = 1, .num_experts = experts, .expert_ffn = ffn};
  };
  static const std::vector<MigrationRow> rows = {
      {"Switch-Base", shape(128, 768, 2048), "GB", 1.21, 24.2},
      {"Mixtral 8x7B", shape(8, 4096, 14336), "GiB", 2.63, 52.6},
      {"Mixtral 8x22B", shape(8, 6144, 16384), "GiB", 4.50, 90.0},
      {"Grok-1", shape(8, 6144, 32768), "GiB", 9.00, 180.0},
      {"GLaM (1.2T)", shape(64, 8192, 32768), "GB", 102.88, 2057.6},
      {"DeepSeek-V2", shape(160, 5120, 1536), "GiB", 7.04, 140.8},
      {"DeepSeek-V3", shape(256, 7168, 2048), "GiB", 21.00, 420.0},
  };
  return rows;
}

}  // namespace piper::studies::paper
