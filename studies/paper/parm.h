// Parm's formulas as they are printed (Pan et al. 2024, "Parm", sections IV and V), for reproducing
// the paper's figures, and what their misprints must have meant.
//
// Notation, as the paper has it: N_MP ranks hold the same tokens (Piper's tp without sequence
// parallelism), N_EP ranks share the experts (ep), N_ESP ranks share each expert's matrices (etp).
//
//   baseline   ESP-AllGather, EP-AlltoAll, experts, ESP-AllReduce, EP-AlltoAll, ESP-Split; every
//              row is computed N_MP times
//   S1         the input is split over MP before the gate; the output B L M is gathered
//   S2         the rows E T M are split over MP behind the gate, and gathered on their way back,
//              beside the all-to-all that returns them
//
// Seconds are those of the forward's communication. Sizes are elements, as doubles: T need not be
// whole. The argument of a gather is what every member holds afterwards. Pure functions,
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>

namespace piper::studies::paper::parm {

// Table I, on one rank.
struct Layer {
  double batch = 0;                                                    // B, sequences
  double sequence = 0;                                                 // L, tokens
  double hidden = 0;                                                   // M
  double num_experts = 1;                                              // E
  double top_k = 1;                                                    // k
  double capacity_factor = 1;                                          // f
  double input_elements() const { return batch * sequence * hidden; }  // B L M
  double expert_tokens() const {                                       // T = k f B L / E
    return top_k * capacity_factor * batch * sequence / num_experts;
  }
  double dispatched_elements() const { return num_experts * expert_tokens() * hidden; }  // E T M
};

struct Degrees {
  int64_t mp = 1, ep = 1, esp = 1;
};

// T(x) = alpha + beta x of one collective in its group (eq. 12).
struct CollectiveFit {
  double startup_seconds = 0;      // alpha
  double seconds_per_element = 0;  // beta
  double seconds(double elements) const { return startup_seconds + seconds_per_element * elements; }
};

// The one collective whose fit is printed, the all-gather over MP (section VI-B).
inline constexpr CollectiveFit kTestbedAGather{6.64e-4, 5.38e-10};  // 8 GPUs in one node
inline constexpr CollectiveFit kTestbedBGather{1.09e-4, 7.14e-10};  // 32 GPUs

// One testbed and one set of degrees. Groups of one rank cost nothing, whatever their fit says.
struct Fits {
  CollectiveFit esp_all_gather, esp_all_reduce;
  CollectiveFit ep_all_to_all;     // of the baseline
  CollectiveFit fused_all_to_all;  // EP&ESP-AlltoAll
  CollectiveFit mp_all_gather;
  // It fits the fused all-to-all with the gather beside it, by the elements of the all-to-all (eq.
  // 7); without it the phases of SAA are added up (saa_seconds).
  std::optional<CollectiveFit> overlapped = {};
};

double baseline_seconds(const Layer& layer, Degrees degrees, const Fits& fits);  // eq. 1
// Eq. 2: ESP-AllGather and EP-AlltoAll as one exchange, there and back. What S1 and S2 are for
// N_MP = 1.
double fused_seconds(const Layer& layer, Degrees degrees, const Fits& fits);
double s1_seconds(const Layer& layer, Degrees degrees, const Fits& fits);  // eq. 11
double s2_seconds(const Layer& layer, Degrees degrees, const Fits& fits);  // eq. 7, first line
// Eq. 7, second line: the all-to-all and the gather one after the other (AAS).
double s2_sequential_seconds(const Layer& layer, Degrees degrees, const Fits& fits);

// Section III-D: the all-to-all in `phases` slices, each beside the gather of the slice before.
double saa_seconds(double all_to_all, double all_gather, int64_t phases);

// Eq. 13 and 14 as printed: the first has lost N_ESP, the second adds a gather that Overlap()
// holds. Requires Fits::overlapped of eq. 14.
double printed_s1_seconds(const Layer& layer, Degrees degrees, const Fits& fits);
double printed_s2_seconds(const Layer& layer, Degrees degrees, const Fits& fits);

enum class Schedule : uint8_t { kBaseline, kS1, kS2 };

// What a split costs in the backward, where it is an all-gather (Fig. 3), and what the equations
// leave out: of B L M N_ESP over ESP in the baseline, whose split has the layer's output (section
// II-B), of B L M over MP in S1, of E T M in S2.
double backward_split_seconds(Schedule schedule, const Layer& layer, Degrees degrees,
                              const Fits& fits);

// Algorithm 1: S1 where it takes no longer than S2.
Schedule better_schedule(const Layer& layer, Degrees degrees, const Fits& fits);
// As printed: T has one M too many, and Overlap() takes y where eq. 7 has y / N_MP. Requires
// Fits::overlapped.
Schedule printed_better_schedule(const Layer& layer, Degrees degrees, const Fits& fits);

// Eq. 10 holds from this many elements E T M on: it loses the gather's start-up. Infinite where
// eq. 9's premise (the gather is no slower than the fused all-to-all) fails by so much that no
// size suffices. Requires N_MP >= 2.
double least_elements_of_eq_10(Degrees degrees, const Fits& fits);

}  // namespace piper::studies::paper::parm
