// Where the ranks of a strategy of any axes sit, and who forms a group with whom. (mesh.h has the same for pp, ep and dp
// alone, which is what the runtime executes.)
//
// The R = tp x cp x dp ranks of a stage are its members 0 .. R-1, cut in two ways:
//
//   member = (dp_index * cp + cp_index) * tp + tp_index               attention
//          = (edp_index * ep + ep_index) * etp + etp_index            experts
//
// Ranks, with `inner` = the members that no placement tears apart, lcm(tp cp, ep etp):
//
//   kDataInside       rank = stage * R + member
//   kPipelineInside   rank = (member / inner * pp + stage) * inner + member % inner
#pragma once

#include <piper/base/strong_id.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::strategy {

// Equally spaced members of a stage.
struct Members {
  int64_t first = 0, stride = 1, size = 1;
};

struct Place {
  int64_t stage = 0, member = 0;
};

class Layout {
 public:
  explicit Layout(const Strategy& strategy);

  int64_t num_stages() const { return pp_; }
  int64_t num_members() const { return members_; }
  Rank rank(int64_t stage, int64_t member) const;
  Place place(Rank rank) const;
  // Member 0 of every stage.
  std::vector<Rank> first_pipeline() const;
  // From a rank to the same member of the next stage.
  int64_t message_distance() const { return is_data_inside_ ? members_ : inner_; }
  // Members that sit on neighbouring devices.
  int64_t num_together() const { return is_data_inside_ ? members_ : inner_; }

  // The group of the member: it shares ...
  Members tensor(int64_t member) const;         // a layer's matrices
  Members context(int64_t member) const;        // a sequence
  Members expert_tensor(int64_t member) const;  // an expert's matrices
  Members experts(int64_t member) const;        // the experts of a layer
  Members data(int64_t member) const;           // gradients of all but the experts: dp x cp
  Members expert_data(int64_t member) const;    // gradients of the same experts

 private:
  int64_t pp_, tp_, cp_, ep_, etp_, members_, inner_;
  bool is_data_inside_;
};

}  // namespace piper::strategy
