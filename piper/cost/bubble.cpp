#include <piper/cost/bubble.h>

#include <algorithm>

namespace piper::cost {
namespace {

using strategy::PipelineSchedule;

// p ranks, v chunks a rank, m micro-batches; seconds of one chunk: f, i, w; c: a message. n: the
// first micro-batches that a pipeline of p fills itself with.
struct Pipeline {
  double p, v, m, f, i, w, c;
  double n() const { return std::min(m, p); }

  double fill_and_drain() const { return (p - 1) * (f + i + w + 2 * c); }

  // Stage 0 has p micro-batches on the way: every p-th one waits for a message down the pipeline
  // and back. The last few go round among the last stages.
  double one_f_one_b(int64_t rounds, int64_t rest) const {
    return (p - 1) * (f + i + w) + 2 * c *
                                       ((p - 1) * (1 + static_cast<double>(rounds)) +
                                        std::max(0.0, static_cast<double>(rest) - 1));
  }

  // Places of a round of p that no micro-batch fills idle once a chunk: in one round alone both
  // ways, behind other rounds only in the backwards (the forwards stand between backwards).
  double interleaved(int64_t last_round) const {
    const double unfilled =
        static_cast<double>(last_round) > 0 ? p - static_cast<double>(last_round) : 0;
    const double idle = m <= p ? f + i + w : i + w;
    return (p - 1) * (f + i + w) + unfilled * (v - 1) * idle + 2 * c * (p * v - 1);
  }

  // Fill; then the drain, of whose p-1 inputs' parts n-1 have weights' parts to go with.
  double zb_h1() const {
    return (p - 1) * (f + c) + (p - n()) * (i + c) +
           (n() - 1) * (std::max({0.0, i + c - w, i - f}) + 2 * c);
  }

  // The steady V: what the ranks' first actions wait for and what they do not catch up with. With
  // few micro-batches or light weights' parts: the way of the first micro-batch down and up and
  // back, behind which the others hide.
  double zb_v() const {
    const double longer = std::max(f, i);
    const double steady = std::max((p - 1) * longer + (p - 2) * std::max(0.0, w - i),
                                   std::max((p - 1) * f, (p - 2) * longer + i + (5 * p - 7) * c));
    const double way = 2 * (p - 1) * (f + i) - 2 * f * (n() - 1) -
                       2 * w * std::max(0.0, std::min(m, 2 * p - 1) - p) +
                       (4 * (p - 1) + 2 * (n() - 1) - (m > p ? 2 : 0)) * c;
    return std::max(steady, way);
  }

  // The same; with fewer than 2p micro-batches whole backwards remain where weights' parts would
  // fill.
  double dualpipev() const {
    const double steady = (p - 1) * (f + std::max(0.0, i - w + c) + 3 * c) +
                          std::max(0.0, (p - 1) * (i - f + 2 * c) - f) +
                          2 * w * std::min(p - 1, std::max(0.0, 2 * p - m));
    const double way = (p - 1) * (2 * f + 2 * i + w + 4 * c) - 2 * f * (m - 1);
    return std::max(steady, way);
  }
};

// Those of the first n forwards (n in the order in which chunks are interleaved) whose micro-batch
// exists.
int64_t existing_forwards(int64_t pp, int64_t vpp, int64_t m, int64_t n) {
  const int64_t whole = m / pp * pp * vpp, rest = m % pp;
  if (n <= whole) return n;
  if (rest == 0) return whole;
  const int64_t behind = std::min(n - whole, pp * vpp);
  return whole + behind / pp * rest + std::min(rest, behind % pp);
}

}  // namespace

double bubble_seconds(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t num_micro_batches,
                      const RankPassSeconds& pass, double message) {
  if (pp == 1) return 0;
  const int64_t m = num_micro_batches;
  const auto v = static_cast<double>(vpp);
  const Pipeline pipeline{.p = static_cast<double>(pp),
                          .v = v,
                          .m = static_cast<double>(m),
                          .f = pass.forward / v,
                          .i = pass.backward_input / v,
                          .w = pass.backward_weights / v,
                          .c = message};
  switch (schedule) {
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::k1F1BPairs:
      return pipeline.fill_and_drain();
    case PipelineSchedule::k1F1B:
      return pipeline.one_f_one_b((m - 1) / pp, (m - 1) % pp);
    case PipelineSchedule::kInterleaved:
    case PipelineSchedule::kInterleavedPairs:
      return pipeline.interleaved(m % pp);
    case PipelineSchedule::kZbH1:
      return pipeline.zb_h1();
    case PipelineSchedule::kZbV:
      return pipeline.zb_v();
    case PipelineSchedule::kDualPipeV:
      return pipeline.dualpipev();
  }
  return 0;
}

int64_t chunk_forwards_in_flight(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t rank,
                                 int64_t num_micro_batches) {
  const int64_t m = num_micro_batches;
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return m;
    case PipelineSchedule::k1F1B:
      return std::min(m, pp - rank);
    case PipelineSchedule::k1F1BPairs:
      return std::min(m, 2 * (pp - rank));
    case PipelineSchedule::kInterleaved:
      return existing_forwards(pp, vpp, m, (pp - rank - 1) * 2 + (vpp - 1) * pp + 1);
    case PipelineSchedule::kInterleavedPairs:
      return existing_forwards(pp, vpp, m, (pp - rank - 1) * 2 + (vpp - 1) * pp + 2);
    case PipelineSchedule::kZbH1:
      return std::min(m, pp);
    case PipelineSchedule::kZbV:
      return std::min({2 * m, m + 1 + rank, 2 * pp});
    case PipelineSchedule::kDualPipeV:
      return std::min({2 * m, m + 1 + rank, 2 * pp + 1});
  }
  return m;
}

int64_t micro_batches_in_flight(strategy::PipelineSchedule schedule, int64_t pp, int64_t rank,
                                int64_t num_micro_batches) {
  // Where a rank holds several chunks, a micro-batch that has begun one counts as a whole.
  const bool is_v = strategy::is_v(schedule);
  if (strategy::interleaves(schedule)) return num_micro_batches;
  return (chunk_forwards_in_flight(schedule, pp, is_v ? 2 : 1, rank, num_micro_batches) +
          (is_v ? 1 : 0)) /
         (is_v ? 2 : 1);
}

}  // namespace piper::cost
