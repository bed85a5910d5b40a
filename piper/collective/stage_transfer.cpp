#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/stage_transfer.h>
#include <piper/collective/step_builder.h>

#include <algorithm>

namespace piper::collective {
namespace {

// Who stands behind the NICs of each node.
class Nics {
 public:
  explicit Nics(const Topology& topology) : nodes_(topology, 0), nic_(topology.nic) {
    nic_.resize(nodes_.num_members(), 0);
    behind_.resize(nodes_.num_units());
    for (int64_t member = 0; member < nodes_.num_members(); ++member) {
      auto& nics = behind_[nodes_.unit(member)];
      auto nic = std::find_if(nics.begin(), nics.end(),
                              [&](const Nic& c) { return c.nic == nic_[member]; });
      if (nic == nics.end()) nic = nics.insert(nics.end(), {nic_[member], {}});
      nic->members.push_back(static_cast<int32_t>(member));
    }
    for (auto& nics : behind_)
      std::sort(nics.begin(), nics.end(), [](const Nic& a, const Nic& b) { return a.nic < b.nic; });
  }

  const Units& nodes() const { return nodes_; }
  int64_t num_nics(int64_t member) const { return size(nics_of(member)); }

  // Who carries piece k of what `member` sends or receives: itself for k = 0.
  int32_t carrier(int64_t member, int64_t k) const {
    const std::vector<Nic>& nics = nics_of(member);
    const auto own =
        std::find_if(nics.begin(), nics.end(), [&](const Nic& c) { return c.nic == nic_[member]; });
    if (k == 0) return static_cast<int32_t>(member);
    const std::vector<int32_t>& members = nics[(own - nics.begin() + k) % size(nics)].members;
    return members[nodes_.place(member) % size(members)];
  }

 private:
  struct Nic {
    int32_t nic;
    std::vector<int32_t> members;
  };
  template <class T>
  static int64_t size(const std::vector<T>& list) {
    return static_cast<int64_t>(list.size());
  }
  const std::vector<Nic>& nics_of(int64_t member) const { return behind_[nodes_.unit(member)]; }

  Units nodes_;
  std::vector<int32_t> nic_;
  std::vector<std::vector<Nic>> behind_;  // by node, ascending NICs
};

struct Piece {
  int64_t offset = 0, count = 0;
};

Piece piece_of(int64_t count, int64_t k, int64_t num) {
  const int64_t each = count / num, rest = count % num;
  return {k * each + std::min(k, rest), each + (k < rest ? 1 : 0)};
}

int64_t total(std::span<const Transfer> transfers, int32_t Transfer::*end, int64_t member) {
  int64_t sum = 0;
  for (const Transfer& transfer : transfers) {
    PIPER_CHECK(transfer.from != transfer.to && transfer.count >= 0,
                fmt::format("{} units from member {} to member {}", transfer.count, transfer.from,
                            transfer.to));
    if (transfer.*end == member) sum += transfer.count;
  }
  return sum;
}

class Writer {
 public:
  Writer(int64_t member, const Topology& topology, std::span<const Transfer> transfers)
      : member_(member),
        nics_(topology),
        transfers_(transfers),
        steps_(member, total(transfers, &Transfer::from, member),
               total(transfers, &Transfer::to, member)) {}

  MemberSteps write(bool spread) {
    uint32_t part = 0;
    for (const Transfer& transfer : transfers_) {
      const bool crosses = !nics_.nodes().together(transfer.from, transfer.to);
      const int64_t num = spread && crosses
                              ? std::min(nics_.num_nics(transfer.from), nics_.num_nics(transfer.to))
                              : 1;
      for (int64_t k = 0; k < num; ++k) piece(transfer, k, num, part++);
      if (transfer.from == member_) sent_ += transfer.count;
      if (transfer.to == member_) received_ += transfer.count;
    }
    return steps_.take();
  }

 private:
  // sender -> carrier in its node -> carrier in the receiver's node -> receiver; who is one and the
  // same has no hop.
  void piece(const Transfer& transfer, int64_t k, int64_t num, uint32_t part) {
    const auto [offset, count] = piece_of(transfer.count, k, num);
    const int32_t out = nics_.carrier(transfer.from, k), in = nics_.carrier(transfer.to, k);
    const Block source{Buffer::kInput, sent_ + offset, count};
    const Block target{Buffer::kOutput, received_ + offset, count};
    std::vector<int32_t> path{transfer.from};
    for (const int32_t next : {out, in, transfer.to})
      if (next != path.back()) path.push_back(next);
    const auto here = std::find(path.begin(), path.end(), member_);
    if (here == path.end()) return;
    const bool first = here == path.begin(), last = here + 1 == path.end();
    const Block held = first ? source : last ? target : steps_.scratch(count);
    After after;
    const int64_t hop = here - path.begin();
    steps_.set_round(hop - 1);
    if (!first) wait_for(after, steps_.receive(*(here - 1), part, held));
    steps_.set_round(hop);
    if (!last) steps_.send(*(here + 1), part, held, after);
  }

  int64_t member_;
  Nics nics_;
  std::span<const Transfer> transfers_;
  StepBuilder steps_;
  int64_t sent_ = 0, received_ = 0;  // of earlier transfers, in input and output
};

}  // namespace

MemberSteps stage_transfer(int64_t member, const Topology& topology,
                           std::span<const Transfer> transfers, bool spread) {
  for (const Transfer& transfer : transfers)
    PIPER_CHECK(transfer.from >= 0 && transfer.to >= 0 &&
                    std::max(transfer.from, transfer.to) < num_members(topology),
                fmt::format("a transfer from member {} to member {}", transfer.from, transfer.to));
  return Writer(member, topology, transfers).write(spread);
}

}  // namespace piper::collective
