#include <piper/cost/bubble.h>
#include <piper/cost/pipeline_time.h>

#include <algorithm>

namespace piper::cost {
namespace {

constexpr int64_t kPlayedInFull = 128;  // micro-batches, about; more are continued linearly

// Is a stage's next action, after so many forwards and backwards, a backward?
bool backward_is_next(int64_t forwards, int64_t backwards, int64_t in_flight, int64_t m) {
  return forwards == m || forwards - backwards == in_flight;
}

class Recurrence {
 public:
  Recurrence(strategy::PipelineSchedule schedule, std::span<const StageSeconds> stages, int64_t m)
      : schedule_(schedule),
        stages_(stages),
        m_(m),
        p_(static_cast<int64_t>(stages.size())),
        forward_sent_(static_cast<size_t>(p_ * m)),
        backward_sent_(static_cast<size_t>(p_ * m)),
        progress_(stages.size()) {}

  std::vector<double> finish() {
    for (int64_t done = 0; done < p_;) {
      done = 0;
      for (int64_t stage = 0; stage < p_; ++stage) done += advance(stage) ? 1 : 0;
    }
    std::vector<double> times;
    for (const Progress& progress : progress_) times.push_back(progress.free_at);
    return times;
  }

 private:
  struct Progress {
    int64_t forwards = 0, backwards = 0;
    double free_at = 0;
    double before =
        0;  // when the action before the last one ended: then the next message could come
  };

  size_t at(int64_t stage, int64_t k) const { return static_cast<size_t>(stage * m_ + k); }

  // `ahead`: seconds of the action that need no message.
  void run(Progress& now, double message_sent_at, double message_seconds, double seconds,
           double ahead) {
    double start = now.free_at + ahead;
    if (message_sent_at >= 0)
      start = std::max(start, std::max(message_sent_at, now.before) + message_seconds);
    now.before = now.free_at;
    now.free_at = start + seconds - ahead;
  }

  // As far as the neighbours allow; true when the stage has finished.
  bool advance(int64_t stage) {
    Progress& now = progress_[static_cast<size_t>(stage)];
    const StageSeconds& time = stages_[static_cast<size_t>(stage)];
    const int64_t in_flight = micro_batches_in_flight(schedule_, p_, stage, m_);
    const bool first = stage == 0, last = stage + 1 == p_;
    while (now.backwards < m_) {
      if (backward_is_next(now.forwards, now.backwards, in_flight, m_)) {
        const int64_t k = now.backwards;
        if (!last && progress_[static_cast<size_t>(stage + 1)].backwards <= k) return false;
        run(now, last ? -1 : backward_sent_[at(stage + 1, k)],
            last ? 0 : stages_[static_cast<size_t>(stage + 1)].send_backward, time.backward,
            time.ahead);
        backward_sent_[at(stage, k)] = now.free_at;
        ++now.backwards;
      } else {
        const int64_t k = now.forwards;
        if (!first && progress_[static_cast<size_t>(stage - 1)].forwards <= k) return false;
        run(now, first ? -1 : forward_sent_[at(stage - 1, k)],
            first ? 0 : stages_[static_cast<size_t>(stage - 1)].send_forward, time.forward, 0);
        forward_sent_[at(stage, k)] = now.free_at;
        ++now.forwards;
      }
    }
    return true;
  }

  strategy::PipelineSchedule schedule_;
  std::span<const StageSeconds> stages_;
  int64_t m_, p_;
  std::vector<double> forward_sent_, backward_sent_;
  std::vector<Progress> progress_;
};

}  // namespace

int64_t micro_batches_in_flight(strategy::PipelineSchedule schedule, int64_t pp, int64_t stage,
                                int64_t num_micro_batches) {
  // Of a rank that holds several chunks, one begun counts as a whole.
  const bool is_v = strategy::is_v(schedule);
  if (schedule == strategy::PipelineSchedule::kInterleaved) return num_micro_batches;
  return (chunk_forwards_in_flight(schedule, pp, is_v ? 2 : 1, stage, num_micro_batches) +
          (is_v ? 1 : 0)) /
         (is_v ? 2 : 1);
}

std::vector<double> pipeline_finish(strategy::PipelineSchedule schedule,
                                    std::span<const StageSeconds> stages,
                                    int64_t num_micro_batches) {
  const auto p = static_cast<int64_t>(stages.size());
  if (p == 1)
    return {static_cast<double>(num_micro_batches) * (stages[0].forward + stages[0].backward)};
  const int64_t played = std::min(num_micro_batches, kPlayedInFull + 4 * p + num_micro_batches % p);
  std::vector<double> times = Recurrence(schedule, stages, played).finish();
  if (played == num_micro_batches) return times;
  const std::vector<double> half = Recurrence(schedule, stages, played / 2).finish();
  const auto further = static_cast<double>(num_micro_batches - played);
  const int64_t since_half = played - played / 2;
  for (size_t i = 0; i < times.size(); ++i)
    times[i] += further * (times[i] - half[i]) / static_cast<double>(since_half);
  return times;
}

}  // namespace piper::cost
