#include <piper/base/error.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_windowed.h>
#include <piper/collective/step_builder.h>

#include <algorithm>

namespace piper::collective {
namespace {

// Where `to` stands among node_aware_targets of `from`, for both of them. Nodes that are smaller
// than the largest one leave numbers out.
class Positions {
 public:
  explicit Positions(const Units& nodes) : nodes_(nodes) {
    for (int64_t node = 0; node < nodes.num_units(); ++node)
      largest_ = std::max(largest_, nodes.size(node));
  }

  int64_t operator()(int64_t from, int64_t to) const {
    const int64_t here = nodes_.unit(from), there = nodes_.unit(to), size = nodes_.size(there);
    const int64_t rotated = (nodes_.place(to) - nodes_.place(from) % size + size) % size;
    const UnitOrder& order = nodes_.order();
    if (here == there) return order.num_steps() * largest_ + rotated - 1;
    return order.step(here, there) * largest_ + rotated;
  }

 private:
  const Units& nodes_;
  int64_t largest_ = 0;
};

}  // namespace

MemberSteps all_to_all_windowed(int64_t member, const Topology& topology, const CountOf& count,
                                int64_t window) {
  PIPER_CHECK(window >= 1, "window " + std::to_string(window));
  const Units nodes(topology, 0);
  StepBuilder writer(member, num_members(topology), count);
  const Positions position(nodes);
  for (const int32_t from : node_aware_sources(member, nodes)) {
    writer.set_round(position(from, member) / window);
    writer.receive_row(from);
  }
  std::vector<int32_t> sends;
  for (const int32_t to : node_aware_targets(member, nodes)) {
    const auto before = static_cast<int64_t>(sends.size()) - window;
    writer.set_round(position(member, to) / window);
    const int32_t send = writer.send_row(to, before >= 0 ? After{sends[before]} : After{});
    if (send >= 0) sends.push_back(send);
  }
  writer.copy_own_row();
  return writer.take();
}

}  // namespace piper::collective
