#include <piper/cost/dedup_all_to_all.h>

#include <algorithm>
#include <cmath>

namespace piper::cost {
namespace {

class Dedup {
 public:
  Dedup(const ExchangeSite& site, int64_t chunk_bytes, const ExchangeLoad& load)
      : s_(site),
        d_(load.pair_bytes),
        n_(site.members()),
        r_(site.levels.front().members),
        m_(n_ / r_ - 1),
        hot_(std::clamp(load.hot, 1.0, n_)),
        others_(n_ > 1 ? (n_ - hot_) / (n_ - 1) : 1),
        tokens_(n_ * d_ / load.spread.copies),
        into_node_(std::min(r_ * d_ * load.spread.across, tokens_)),
        into_member_(std::min(d_ * load.spread.inside, tokens_)),
        weights_(load.spread.row_bytes > 0 ? d_ * kWeightBytes / load.spread.row_bytes : 0) {
    const double cut = chunk_bytes > 0 ? std::ceil(tokens_ / static_cast<double>(chunk_bytes)) : 1;
    const double row = std::max(load.spread.row_bytes, 1.0);  // no piece is less
    pieces_ = std::clamp(cut, 1.0, std::max(1.0, into_node_ / row));
    hand_pieces_ = std::clamp(cut, 1.0, std::max(1.0, into_member_ / row));
  }

  DedupSeconds seconds() const {
    if (n_ <= 1) return {};
    return {.dispatch = dispatch(), .combine = combine(), .weights = weights(), .ports = ports()};
  }
  double scratch() const {
    return n_ <= 1 ? 0 : 2 * m_ * into_node_ + (m_ + 1) * (r_ - 1) * into_member_;
  }

 private:
  double touched(double bytes) const { return 2 * bytes * s_.memory_seconds_per_byte; }
  double inside(double bytes) const { return bytes * s_.levels.front().seconds_per_byte; }
  double near_latency() const { return s_.levels.front().latency_seconds; }
  double far_latency() const { return m_ > 0 ? s_.levels.back().latency_seconds : 0; }
  double start() const { return s_.startup_seconds; }
  double hottest_of(double members) const { return (hot_ + (members - 1) * others_) / members; }

  double starts() const { return (m_ * pieces_ + m_ * hand_pieces_ * (r_ - 1) + r_ - 1) * start(); }

  // Rows for all units but its own of the level below, a member's, on its share. A token enters a
  // node once at most.
  double beyond() const {
    double longest = 0;
    const double row = std::min(into_node_ * hottest_of(r_), tokens_) / r_;
    for (size_t l = 1; l < s_.levels.size(); ++l)
      longest =
          std::max(longest, (n_ - s_.levels[l - 1].members) * row * s_.levels[l].seconds_per_byte);
    return longest;
  }
  // All that a member hears of its node.
  double within() const {
    return inside((r_ - 1) * (m_ + 1) * std::min(into_member_ * hot_, tokens_));
  }
  // A piece alone, on a whole NIC.
  double one_piece() const {
    return s_.levels.size() == 1
               ? 0
               : into_node_ / pieces_ * s_.levels[1].seconds_per_byte / s_.members_of_nic;
  }
  double ports() const {
    return start() + std::max(beyond() + far_latency(), within() + near_latency());
  }

  double copied(double bytes) const { return s_.local_seconds + touched(bytes); }
  // Two reads and a write.
  double added(double bytes) const { return s_.local_seconds + 1.5 * touched(bytes); }

  double dispatch() const {
    // All tokens go as they lie; on nodes of one member all stay where they arrive.
    const bool packs = (1 - 1e-9) * tokens_ > into_node_;
    const bool spreads = r_ > 1;
    const double copies =
        copied((packs ? m_ * into_node_ : 0) + (spreads ? r_ * (m_ + 1) : 1) * into_member_);
    const double picked = into_member_ / hand_pieces_;
    const double first = (packs ? copied(into_node_ / pieces_) : 0) + start() + far_latency();
    const double on = spreads ? copied(r_ * picked) +
                                    std::max((r_ - 1) * start(), inside((r_ - 1) * picked)) +
                                    near_latency()
                              : 0;
    const double own = copied(into_member_) + start() + within() + near_latency();
    if (m_ == 0) return std::max(own, copies + (r_ - 1) * start());
    return std::max({own, copies, starts() + near_latency(), first + beyond() + on,
                     first + one_piece() + copied(picked) + start() + within() * m_ / (m_ + 1) +
                         near_latency()});
  }

  double combine() const {
    const double copies = added((m_ + 1) * r_ * into_member_ + m_ * into_node_);
    const double picked = into_member_ / hand_pieces_;
    // Members' results are added one after another.
    const double sum = r_ * s_.local_seconds + 1.5 * touched(r_ * picked);
    const double inner =
        start() + within() + near_latency() + r_ * s_.local_seconds + touched(into_member_);
    if (m_ == 0) return std::max(inner, copies);
    const double first =
        (r_ > 1 ? start() + near_latency() + inside((r_ - 1) * picked) : 0) + sum + start();
    const double last = added(into_node_ / pieces_);
    return std::max({inner, copies, starts() + far_latency() + last,
                     first + beyond() + far_latency() + last,
                     first + one_piece() + far_latency() + m_ * s_.local_seconds +
                         1.5 * touched(m_ * into_node_),
                     start() + within() * m_ / (m_ + 1) + near_latency() + sum + one_piece() +
                         far_latency() + last});
  }

  // Beside the tokens: what their starts and bytes add where those already fill the ways.
  double weights() const {
    if (weights_ <= 0) return 0;
    double longest = inside((r_ - 1) * weights_ * hot_);
    for (size_t l = 1; l < s_.levels.size(); ++l)
      longest =
          std::max(longest, (n_ - s_.levels[l - 1].members) * weights_ *
                                s_.levels[l].seconds_per_byte * hottest_of(s_.members_of_nic));
    return std::max((n_ - 1) * start(), longest);
  }

  const ExchangeSite& s_;
  double d_, n_, r_, m_, hot_;
  double others_;                        // bytes for the others over the mean
  double tokens_;                        // bytes of a member's tokens
  double into_node_;                     // from a member to another node, and
  double into_member_;                   // to another member
  double weights_;                       // bytes of a pair's weights
  double pieces_ = 1, hand_pieces_ = 1;  // that hold rows: for a node, for a member of it
};

}  // namespace

DedupSeconds dedup_seconds(const ExchangeSite& site, int64_t chunk_bytes,
                           const ExchangeLoad& load) {
  return Dedup(site, chunk_bytes, load).seconds();
}

double dedup_scratch_bytes(const ExchangeSite& site, const ExchangeLoad& load) {
  return Dedup(site, 0, load).scratch();
}

}  // namespace piper::cost
