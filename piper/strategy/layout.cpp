#include <piper/strategy/layout.h>

#include <numeric>

namespace piper::strategy {

Layout::Layout(const Strategy& s)
    : pp_(s.mesh.pp),
      tp_(s.mesh.tp),
      cp_(s.mesh.cp),
      ep_(s.mesh.ep),
      etp_(s.mesh.etp),
      members_(s.mesh.ranks_per_stage()),
      inner_(std::lcm(tp_ * cp_, ep_ * etp_)),
      is_data_inside_(s.placement == Placement::kDataInside) {}

Rank Layout::rank(int64_t stage, int64_t member) const {
  if (is_data_inside_) return Rank(stage * members_ + member);
  return Rank((member / inner_ * pp_ + stage) * inner_ + member % inner_);
}

Place Layout::place(Rank rank) const {
  if (is_data_inside_) return {rank.value / members_, rank.value % members_};
  const int64_t block = rank.value / inner_;
  return {block % pp_, block / pp_ * inner_ + rank.value % inner_};
}

std::vector<Rank> Layout::first_pipeline() const {
  std::vector<Rank> ranks;
  for (int64_t stage = 0; stage < pp_; ++stage) ranks.push_back(rank(stage, 0));
  return ranks;
}

Members Layout::tensor(int64_t member) const { return {member / tp_ * tp_, 1, tp_}; }

Members Layout::context(int64_t member) const {
  const int64_t ranks = tp_ * cp_;
  return {member / ranks * ranks + member % tp_, tp_, cp_};
}

Members Layout::expert_tensor(int64_t member) const { return {member / etp_ * etp_, 1, etp_}; }

Members Layout::experts(int64_t member) const {
  const int64_t ranks = ep_ * etp_;
  return {member / ranks * ranks + member % etp_, etp_, ep_};
}

Members Layout::data(int64_t member) const { return {member % tp_, tp_, members_ / tp_}; }

Members Layout::expert_data(int64_t member) const {
  const int64_t ranks = ep_ * etp_;
  return {member % ranks, ranks, members_ / ranks};
}

}  // namespace piper::strategy
