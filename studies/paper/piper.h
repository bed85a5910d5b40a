// Piper's formulas as they are printed (Dash and Wang, "Piper", sections III, IV-C, VI-A), under a
// name of their own: for reproducing the paper's figures and for showing them beside the exact
// ones. The planner decides with the exact forms (layer_memory.h, segment_time.h), because as
// printed
//
//   - the expert activations of eq. 2-5 are divided by EP although `b` is undivided in the attention
//     terms: b would have to be the batch of one rank and of the whole group at once;
//   - embedding, head, norms, router, shared experts and dense layers are left out;
//   - attention is multi-head with 4 d^2 parameters, whatever the model does.
//
// All sizes are bytes, as doubles: b / M need not be whole. Pure functions, thread-safe.
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::studies::paper {

// Table II.
struct PaperModel {
  int64_t hidden = 0;        // d
  int64_t num_layers = 0;    // L, all of them mixtures
  int64_t num_heads = 0;     // H
  int64_t num_experts = 0;   // E, routed
  int64_t top_k = 0;         // k
  int64_t expert_ffn = 0;    // d_ffn
  int64_t num_matrices = 3;  // n_mat: 3 = SwiGLU; the M10B family only adds up with 2
};

// The shapes of the first mixture layer stand for all layers; a dense model is one expert with k 1.
// Requires at least one layer.
PaperModel from_model(const model::Model& model);

struct Options {
  bool flash_attention = false;  // 4 b H s^2 -> 2 b H s
  int ffn_values = 3;  // values kept a token and expert: 3 d_ffn (fused kernel) or 4 d_ffn
};

struct Batch {
  double sequences = 0;  // b: the global batch of eq. 1-5; of one EP group in eq. 6
  int64_t sequence = 0;  // s, tokens
};

struct Degrees {
  int64_t pp = 1;
  int64_t ep = 1;
  bool operator==(const Degrees&) const = default;
};

// Bytes a parameter on the GPU: 2 weight + 2 gradient + 4 master + 8 Adam. (Section I says "about
// 20".)
inline constexpr double kBytesPerParameter = 16;

// 4 d^2 + n_mat E d d_ffn, times L.
double num_parameters(const PaperModel& model);

// Table III: one layer on one device.
struct LayerBytes {
  double attention_state = 0;        // 64 d^2
  double expert_state = 0;           // 16 n_mat E d d_ffn: 48 E d d_ffn for SwiGLU
  double attention_activations = 0;  // 12 b s d + 4 b H s^2
  double expert_activations = 0;     // 2 b s k (3 d_ffn + d)
  double total() const {
    return attention_state + expert_state + attention_activations + expert_activations;
  }
};
LayerBytes table_iii(const PaperModel& model, const Batch& batch, const Options& options);

// Eq. 1: everything on one hypothetical GPU.
double memory_one_device(const PaperModel& model, const Batch& batch, const Options& options);
// Eq. 2: expert-data parallelism over ep devices, per GPU.
double memory_expert_parallel(const PaperModel& model, const Batch& batch, int64_t ep,
                              const Options& options);
// Eq. 3: pp x ep under GPipe, per GPU: all micro-batches alive, so b itself.
double memory_gpipe(const PaperModel& model, const Batch& batch, Degrees degrees,
                    const Options& options);
// Eq. 4: pp x ep under 1F1B, per GPU of stage 0 <= stage < pp, which holds pp - stage micro-batches
// of b / M sequences; M = alpha pp (section III: alpha is the micro-batch multiplier).
double memory_1f1b(const PaperModel& model, const Batch& batch, Degrees degrees, double alpha,
                   int64_t stage, const Options& options);
// Eq. 5: what the first stage holds more than the last one.
double memory_difference_1f1b(const PaperModel& model, const Batch& batch, Degrees degrees,
                              double alpha, const Options& options);

// Section III-B: bytes that one GPU sends in one dispatch, 2 b s k d / EP, b being the batch of the
// EP group; (EP - 1) / EP of it leaves the GPU.
double dispatch_bytes(const PaperModel& model, const Batch& batch, int64_t ep);
// Eq. 6, 4 b s k d / (EP B_NIC): dispatch and combine of a layer's forward with a NIC for each GPU.
double all_to_all_seconds(const PaperModel& model, const Batch& batch, int64_t ep,
                          double nic_bytes_per_second);
// The same where `gpus_per_nic` GPUs share a NIC: on Frontier (8 GCDs, 4 NICs) 8 b s k d / (EP
// B_NIC).
double all_to_all_seconds(const PaperModel& model, const Batch& batch, int64_t ep,
                          double nic_bytes_per_second, double gpus_per_nic);
// Section III-B.2: bytes that one GPU sends to the next stage, 2 b s d, b being what it holds.
double stage_message_bytes(const PaperModel& model, const Batch& batch);

// Eq. 7-11.
struct Machine {
  int64_t num_devices = 0;       // n g
  int64_t gpus_per_node = 8;     // g
  int64_t nodes_per_domain = 4;  // N_h: nodes on one switch
  double memory_bytes = 0;       // C_GPU; 0 = eq. 11 is not asked
};
struct Load {  // for eq. 11
  Batch batch;
  double alpha = 1;
  Options options;
};
// The numbers (7 .. 11) of the equations that forbid `degrees`, ascending; empty = admitted. Eq. 9
// is PP <= L as printed: where L / PP is no whole number, eq. 11 takes the mean stage for the first.
std::vector<int> violated_equations(const PaperModel& model, const Machine& machine,
                                    Degrees degrees, const Load& load = {});
// All admitted PP x EP with PP x EP = num_devices (DP = 1), by ascending pp.
std::vector<Degrees> admitted(const PaperModel& model, const Machine& machine,
                              const Load& load = {});

// Eq. 12.
struct Mfu {
  double hardware_efficiency = 0;  // F_model / (pi_eff G t_compute)
  double compute_fraction = 0;     // t_compute / t_step
  double value() const { return hardware_efficiency * compute_fraction; }
};
// It assumes a step without other losses: t_step = t_compute + exposed communication (only what is
// not hidden counts, although t_comm is printed).
Mfu mfu(double model_flops, double peak_flops_per_second, int64_t num_devices,
        double compute_seconds, double exposed_seconds);

// Section VI-A: bytes that one GPU sends when all experts of a layer move: 48 (E / EP) d d_ffn.
double migration_bytes(const PaperModel& model, int64_t ep);

// Table IV. GiB (2^30) and GiB/s in some rows, GB (1e9) and GB/s in others: each in its own unit.
struct MigrationRow {
  std::string model;
  PaperModel shape;
  std::string unit;  // "GiB" or "GB"
  double printed_size = 0;
  double printed_milliseconds = 0;
  double size() const;          // computed, in `unit`, EP = 8
  double milliseconds() const;  // at 50 `unit` a second
  // Returns the part of a parameter's 16 bytes that travels between two steps: all but 2 of the
  // weight and 2 of the gradient (schedule/migration.h).
  static constexpr double moved_part() { return 12 / kBytesPerParameter; }
};
const std::vector<MigrationRow>& table_iv();

}  // namespace piper::studies::paper
