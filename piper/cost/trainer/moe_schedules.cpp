#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cost/trainer/layer_pass.h>
#include <piper/cost/trainer/mixture_order.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/cost/trainer/rates.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace piper::cost {
namespace {

using strategy::MoeSchedule;

double real(int64_t value) { return static_cast<double>(value); }

// A collective of one rank's group, alone. `memory`: how long its bytes keep the memory busy.
struct Collective {
  CommTime moves;
  LevelUtilization needs;
  double across = 0, inside = 0;  // bytes that the rank sends
  double memory = 0;
  double seconds() const { return moves.total(); }
};

// One of n chunks: start-ups stay, bytes are divided.
CommTime chunk_of(const CommTime& whole, double n) { return {whole.latency, whole.transfer / n}; }

// How long two take that start together, by the level on which both need most.
double together(const Collective& a, const Collective& b, double n) {
  double busiest = 0;
  for (size_t l = 0; l < kMaxLevels; ++l)
    busiest = std::max(
        busiest, a.needs.part[l] * a.moves.transfer / n + b.needs.part[l] * b.moves.transfer / n);
  return busiest;
}

class MoePricer {
 public:
  MoePricer(const model::FeedForward& layer, const MoeSetting& setting,
            const cluster::Cluster& cluster)
      : layer_(layer), s_(setting), cluster_(cluster), rates_(cluster, setting.precision) {
    PIPER_CHECK(layer.is_moe() && layer.num_experts % setting.ep == 0, "experts that ep divides");
    PIPER_CHECK(setting.tp % setting.etp == 0 || setting.etp % setting.tp == 0,
                "one of tp and etp divides the other");
    element_bytes_ = static_cast<double>(element_bytes(s_.precision));
    rows_ = s_.tokens * real(layer.top_k) * s_.rows_per_copy;
    bytes_ = rows_ * s_.hidden * element_bytes_;
    token_bytes_ = s_.tokens * s_.hidden * element_bytes_;
  }

  std::vector<MoeSchedulePrice> all() const {
    return {plain(),
            parm_baseline(),
            parm_s1(),
            parm_s2(),
            monta_o1(),
            best(&MoePricer::monta_o2),
            best(&MoePricer::monta_o3),
            best(&MoePricer::chunked),
            best(&MoePricer::fastermoe, s_.ep)};
  }

  // In 1, 2, ... chunks.
  std::vector<MoeSchedulePrice> in_chunks(MoeSchedule schedule) const {
    std::vector<MoeSchedulePrice> prices{executed(schedule, 1)};
    const int64_t most = traits(schedule).groups_peers ? s_.ep : strategy::kMaxMoeChunks;
    for (int64_t n = 2; n <= most && may_be_cut_in(n); ++n) prices.push_back(executed(schedule, n));
    return prices;
  }

 private:
  using Chunked = MoeSchedulePrice (MoePricer::*)(int64_t num_chunks) const;

  bool may_be_cut_in(int64_t n) const {
    return n <= strategy::kMaxMoeChunks && real(n) <= s_.tokens;
  }
  // In `most` chunks at most.
  MoeSchedulePrice best(Chunked schedule, int64_t most = strategy::kMaxMoeChunks) const {
    MoeSchedulePrice best = (this->*schedule)(1);
    for (int64_t n = 2; n <= most && may_be_cut_in(n); ++n)
      if (MoeSchedulePrice p = (this->*schedule)(n); p.total() < best.total()) best = std::move(p);
    return best;
  }

  // Members of a group in one node.
  int64_t members_inside(int64_t size, int64_t stride) const {
    return std::clamp<int64_t>(cluster_.devices_per_node() / stride, 1, size);
  }
  Collective exchange(int64_t size, int64_t stride, double bytes) const {
    Collective c{.moves = rates_.all_to_all(size, stride, bytes, 1)};
    c.needs = rates_.all_to_all_needs(size, stride, bytes, 1, c.moves.transfer);
    const double pair = bytes / real(size), in_node = real(members_inside(size, stride));
    c.inside = pair * (in_node - 1);
    c.across = pair * (real(size) - in_node);
    return c;
  }
  // A ring: of the members of a node one sends to the next node. `times`: 2 for an all-reduce.
  Collective gather(int64_t size, int64_t stride, double bytes, double times = 1) const {
    const CommTime once = rates_.all_gather(size, stride, bytes);
    Collective c{.moves = {times * once.latency, times * once.transfer}};
    if (size <= 1) return c;
    c.needs = rates_.ring_needs(size, stride);
    const double wire = times * bytes * real(size - 1) / real(size);
    const int64_t in_node = members_inside(size, stride);
    c.across = in_node < size ? wire / real(in_node) : 0;
    c.inside = wire - c.across;
    c.memory = rates_.pass_seconds(2 * wire);
    return c;
  }

  struct Experts {
    double forward = 0, backward = 0;
  };
  // Seconds of a rank's experts with so many rows, computed in n equal parts.
  Experts experts(double rows, int64_t n = 1) const {
    const double local = real(layer_.num_experts) / real(s_.ep);
    LayerPass pass(rates_, s_.precision);
    pass.feed_forward(rows / local / real(n), s_.hidden, real(layer_.ffn) / real(s_.etp),
                      layer_.num_matrices, local, s_.grouped_efficiency);
    return {real(n) * pass.forward(), real(n) * pass.backward()};
  }

  // Everything one after the other.
  static MoePass sequential(const std::vector<Collective>& exchanges,
                            const std::vector<Collective>& gathers, double experts) {
    MoePass pass{.experts = experts};
    for (const Collective& c : exchanges) pass.exchange += c.seconds();
    for (const Collective& c : gathers) pass.gather += c.seconds();
    pass.total = pass.exchange + pass.gather + experts;
    return pass;
  }
  static void count(MoeSchedulePrice& price, const std::vector<Collective>& collectives,
                    double passes = 2) {
    for (const Collective& c : collectives) {
      price.bytes_across += passes * c.across;
      price.bytes_inside += passes * c.inside;
    }
  }
  static MoeSchedulePrice priced(const char* name, const std::vector<Collective>& exchanges,
                                 const std::vector<Collective>& gathers, const Experts& experts) {
    MoeSchedulePrice price{.name = name,
                           .forward = sequential(exchanges, gathers, experts.forward),
                           .backward = sequential(exchanges, gathers, experts.backward)};
    count(price, exchanges);
    count(price, gathers);
    return price;
  }

  // Kinds of rows that meet in an etp group.
  int64_t kinds() const { return std::max<int64_t>(1, s_.etp / s_.tp); }
  Collective plain_exchange() const { return exchange(s_.ep, s_.etp, bytes_); }
  // Before the experts and behind them.
  std::vector<Collective> plain_gathers() const {
    const double bytes = real(kinds()) * bytes_;
    const bool all_differ = kinds() == s_.etp;  // each member keeps its own share of the sums
    return {gather(kinds(), s_.tp, bytes), gather(s_.etp, 1, bytes, all_differ ? 1 : 2)};
  }
  MoeSchedulePrice plain() const {
    const Collective way = plain_exchange();
    return priced(name(MoeSchedule::kPlain), {way, way}, plain_gathers(),
                  experts(real(kinds()) * rows_));
  }

  MoeSchedulePrice parm_baseline() const {
    const double etp = real(s_.etp);
    const Collective way = exchange(s_.ep, s_.etp, etp * bytes_);
    const Collective tokens = gather(s_.etp, 1, etp * token_bytes_);
    const Collective sum = gather(s_.etp, 1, etp * bytes_, 2);
    return priced(name(MoeSchedule::kParmBaseline), {way, way}, {tokens, sum},
                  experts(etp * rows_));
  }

  double dealt_rows() const { return rows_ * real(s_.etp) / real(s_.tp); }
  double dealt_bytes() const { return bytes_ * real(s_.etp) / real(s_.tp); }
  Collective fused() const { return exchange(s_.ep * s_.etp, 1, dealt_bytes()); }

  MoeSchedulePrice parm_s1() const {
    return priced(name(MoeSchedule::kParmS1), {fused(), fused()}, {gather(s_.tp, 1, token_bytes_)},
                  experts(dealt_rows()));
  }

  MoeSchedulePrice parm_s2() const {
    const Collective way = fused(), back = gather(s_.tp, 1, bytes_);
    MoeSchedulePrice price =
        priced(name(MoeSchedule::kParmS2), {way, way}, {back}, experts(dealt_rows()));
    const double phases = real(s_.ep * s_.etp);
    const double slice = way.moves.transfer / phases, gathered = back.moves.transfer / phases;
    const double steady = std::max({slice, gathered, together(way, back, phases)});
    const double beside =
        way.moves.latency + back.moves.latency + slice + (phases - 1) * steady + gathered;
    for (MoePass* pass : {&price.forward, &price.backward})
      pass->total = way.seconds() + beside + pass->experts;
    return price;
  }

  // To the experts, and gathered in front of them; what sums their parts; back, and gathered
  // behind.
  struct Ways {
    Collective there, in, sum, back, out;
  };
  // MoNTA's.
  Ways ways() const {
    const Collective way = exchange(s_.ep, s_.etp, bytes_ / real(s_.tp));
    const Collective in = gather(s_.etp, 1, dealt_bytes());
    return {.there = way, .in = in, .sum = in, .back = way, .out = gather(s_.tp, 1, bytes_)};
  }
  MoeSchedulePrice monta(const char* name) const {
    const Ways w = ways();
    return priced(name, {w.there, w.back}, {w.in, w.sum, w.out}, experts(dealt_rows()));
  }
  MoeSchedulePrice monta_o1() const { return monta(name(MoeSchedule::kMontaO1)); }
  MoeSchedulePrice monta_o2(int64_t n) const {
    return monta_chunked(name(MoeSchedule::kMontaO2), n, false);
  }
  MoeSchedulePrice monta_o3(int64_t n) const {
    return monta_chunked(name(MoeSchedule::kMontaO3), n, true);
  }

  MoeSchedulePrice monta_chunked(const char* name, int64_t num_chunks, bool hides_copies) const {
    const Ways w = ways();
    const double n = real(num_chunks);
    MoeSchedulePrice price = monta(name);
    price.num_chunks = num_chunks;
    // A chunk's copy to its place reads and writes what was gathered.
    const auto copy_of = [&](int64_t members, double bytes) {
      return num_chunks > 1 && members > 1 ? rates_.pass_seconds(2 * bytes / n) : 0;
    };
    const auto pipelined = [&](const Collective& way, const Collective& gathered, double copy) {
      const double first = chunk_of(way.moves, n).total();
      const double second = chunk_of(gathered.moves, n).total();
      const double shared = together(way, gathered, n);
      const double steady = hides_copies
                                ? std::max({first, second, shared, copy + gathered.memory / n})
                                : std::max({first, second + copy, shared});
      return first + (n - 1) * steady + second + copy;
    };
    const double copy_in = copy_of(s_.etp, dealt_bytes()), copy_out = copy_of(s_.tp, bytes_);
    const auto chunks = [&](const Collective& c) { return n * chunk_of(c.moves, n).total(); };
    for (MoePass* pass : {&price.forward, &price.backward}) {
      pass->exchange = chunks(w.there) + chunks(w.back);
      pass->gather = chunks(w.in) + w.sum.seconds() + chunks(w.out);
      pass->copy = n * (copy_in + copy_out);
      pass->total = pipelined(w.there, w.in, copy_in) + pipelined(w.back, w.out, copy_out) +
                    w.sum.seconds() + pass->experts;
    }
    return price;
  }

  MoeSchedulePrice chunked(int64_t num_chunks) const {
    return executed(MoeSchedule::kChunked, num_chunks);
  }
  MoeSchedulePrice fastermoe(int64_t num_groups) const {
    return executed(MoeSchedule::kFasterMoe, num_groups);
  }
  // By group of peers, seconds of one exchange.
  std::vector<CommTime> of_groups(int64_t num_groups) const {
    std::vector<CommTime> groups;
    for (int64_t i = 0; i < num_groups; ++i)
      groups.push_back(
          rates_.all_to_all(s_.ep, s_.etp, bytes_, strategy::token_chunk(s_.ep, num_groups, i)));
    return groups;
  }

  static bool sends_all_rows(MoeSchedule schedule) {
    return schedule == MoeSchedule::kChunked || schedule == MoeSchedule::kFasterMoe;
  }
  // What the executor's chunks are of: Parm's S2 has no gathers over etp, `chunked` none over tp.
  Ways executed_ways(MoeSchedule schedule) const {
    if (schedule == MoeSchedule::kMontaO2) return ways();
    if (schedule == MoeSchedule::kParmS2) {
      const Collective way = fused();
      return {.there = way, .in = {}, .sum = {}, .back = way, .out = gather(s_.tp, 1, bytes_)};
    }
    PIPER_CHECK(sends_all_rows(schedule), "a schedule that is executed in chunks");
    const Collective way = plain_exchange();
    const std::vector<Collective> gathers = plain_gathers();
    return {.there = way, .in = gathers[0], .sum = gathers[1], .back = way, .out = {}};
  }

  // As the executor runs it (mixture_order.h): of n chunks, one on each of three streams.
  MoeSchedulePrice executed(MoeSchedule schedule, int64_t num_chunks) const {
    const Ways w = executed_ways(schedule);
    const double rows = sends_all_rows(schedule) ? real(kinds()) * rows_ : dealt_rows();
    MoeSchedulePrice price =
        priced(name(schedule), {w.there, w.back}, {w.in, w.sum, w.out}, experts(rows, num_chunks));
    price.num_chunks = num_chunks;
    const auto chunks = [&](const Collective& c) { return of_chunks(c.moves, num_chunks).total(); };
    const bool is_one_link = need_one_link(w.there.needs, w.in.needs) ||
                             need_one_link(w.there.needs, w.sum.needs) ||
                             need_one_link(w.back.needs, w.out.needs);
    std::vector<CommTime> groups;
    if (traits(schedule).groups_peers && num_chunks > 1) groups = of_groups(num_chunks);
    for (MoePass* pass : {&price.forward, &price.backward}) {
      pass->exchange =
          groups.empty() ? chunks(w.there) + chunks(w.back) : 2 * of_chunks(groups).total();
      pass->gather = chunks(w.in) + chunks(w.sum) + chunks(w.out);
      pass->total = seconds_together({.num_chunks = num_chunks,
                                      .there = w.there.moves,
                                      .in = w.in.moves,
                                      .sum = w.sum.moves,
                                      .back = w.back.moves,
                                      .out = w.out.moves,
                                      .there_of_chunk = groups,
                                      .back_of_chunk = groups,
                                      .experts = pass->experts,
                                      .is_one_link = is_one_link});
      if (groups.empty()) continue;
      // Every further group adds its copies to all tokens.
      pass->copy = rates_.pass_seconds(2 * real(num_chunks - 1) * token_bytes_) +
                   real(num_chunks - 2) * rates_.launch_seconds();
      pass->total += pass->copy;
    }
    return price;
  }

  const model::FeedForward& layer_;
  const MoeSetting& s_;
  const cluster::Cluster& cluster_;
  Rates rates_;
  double element_bytes_ = 2, rows_ = 0, bytes_ = 0, token_bytes_ = 0;
};

}  // namespace

std::vector<MoeSchedulePrice> price_moe_schedules(const model::FeedForward& layer,
                                                  const MoeSetting& setting,
                                                  const cluster::Cluster& cluster) {
  return MoePricer(layer, setting, cluster).all();
}

std::vector<MoeSchedulePrice> price_chunks(const model::FeedForward& layer,
                                           const MoeSetting& setting,
                                           const cluster::Cluster& cluster,
                                           strategy::MoeSchedule schedule) {
  return MoePricer(layer, setting, cluster).in_chunks(schedule);
}

size_t cheapest(const std::vector<MoeSchedulePrice>& list) {
  PIPER_CHECK(!list.empty(), "no schedules");
  const auto best = std::ranges::min_element(list, {}, &MoeSchedulePrice::total);
  return static_cast<size_t>(best - list.begin());
}

std::string why_cheaper(const MoeSchedulePrice& best, const MoeSchedulePrice& other) {
  std::vector<std::string> less, more;
  const auto term = [&](const char* what, double MoePass::*part) {
    const double saved =
        other.forward.*part + other.backward.*part - best.forward.*part - best.backward.*part;
    if (std::abs(saved) < 0.01 * other.total()) return;
    (saved > 0 ? less : more)
        .push_back(fmt::format("{} of {}", format_seconds(std::abs(saved)), what));
  };
  term("exchanges", &MoePass::exchange);
  term("gathers", &MoePass::gather);
  term("copies", &MoePass::copy);
  term("experts", &MoePass::experts);
  const double hides = best.forward.overlapped() + best.backward.overlapped() -
                       other.forward.overlapped() - other.backward.overlapped();
  if (std::abs(hides) >= 0.01 * other.total())
    (hides > 0 ? less : more)
        .push_back(fmt::format("{} that overlap", format_seconds(std::abs(hides))));
  std::string text = fmt::format("{} takes {:.2f} of the time of {}", best.name,
                                 best.total() / other.total(), other.name);
  if (!less.empty()) text += fmt::format(": it saves {}", fmt::join(less, ", "));
  if (!more.empty())
    text += fmt::format("{} {}", less.empty() ? ": it costs" : ", for", fmt::join(more, ", "));
  return text;
}

}  // namespace piper::cost
