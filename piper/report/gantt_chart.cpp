#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/gantt_chart.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace piper::report {
namespace {

using graph::Stream;

constexpr double kGanttLeft = 130, kGanttRight = 76, kGanttTop = 4;
constexpr double kCompute = 18, kThin = 4, kGanttGap = 1,
                 kGanttRow = kCompute + 5 * (kThin + kGanttGap) + 7;
constexpr double kNarrow = 0.5;  // pixels: a bar below cannot be told from its neighbour
constexpr double kTouching = 0.25;
constexpr double kFineGap = 1.5;  // between narrow bars of one class, which are drawn as one, pale

// Top and height of a stream's lane within a rank's row.
std::pair<double, double> lane_place(Stream stream) {
  constexpr double kBelow = kCompute + kGanttGap;
  switch (stream) {
    case Stream::kCompute:
      return {0, kCompute};
    case Stream::kExchange:
      return {kBelow, kThin};
    case Stream::kSend:
      return {kBelow + kThin + kGanttGap, kThin};
    case Stream::kReceive:
      return {kBelow + 2 * (kThin + kGanttGap), kThin};
    case Stream::kStates:
      return {kBelow + 3 * (kThin + kGanttGap), kThin};
    case Stream::kHost:
      return {kBelow + 4 * (kThin + kGanttGap), kThin};
  }
  return {0, 0};
}

double length(const Bar& bar) { return bar.end_seconds - bar.start_seconds; }

class GanttDrawing {
 public:
  GanttDrawing(const Gantt& gantt, const GanttChartOptions& options)
      : gantt_(gantt),
        ranks_(evenly_chosen(gantt.ranks.size(), options.max_ranks)),
        x_{0, std::max(options.axis_seconds, gantt.seconds), kGanttLeft, kChartWidth - kGanttRight},
        bottom_(kGanttTop + kGanttRow * static_cast<double>(ranks_.size())),
        svg_(kChartWidth, bottom_ + 24, options.description) {}

  std::string draw() {
    axis();
    pixels_per_second_ = (x_.to - x_.from) / x_.high;
    std::vector<std::vector<Lane>> lanes;  // by drawn rank
    std::vector<double> widths;            // of all bars
    // What is narrower than half a pixel is drawn as one; in a chart of very many bars what is
    // narrower than one, or two.
    for (const double coarseness : {1, 2, 4}) {
      lanes.clear(), widths.clear();
      for (const size_t index : ranks_) {
        lanes.push_back(lanes_of(gantt_.ranks[index], coarseness));
        for (const Lane& lane : lanes.back())
          for (const DrawnBar& drawn : lane.bars) widths.push_back(pixels(drawn));
      }
      if (widths.size() <= kMostBars) break;
    }
    if (widths.size() > kMostNamedBars) {
      std::ranges::nth_element(widths, widths.begin() + kMostNamedBars, std::greater());
      named_width_ = widths[kMostNamedBars];
    }
    double y = kGanttTop;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      rank(gantt_.ranks[ranks_[i]], lanes[i], y);
      y += kGanttRow;
    }
    const double end = x_(gantt_.seconds);
    svg_.line(end, kGanttTop - 4, end, bottom_, "step-end",
              "end of the step: " + format_seconds(gantt_.seconds));
    return svg_.finish();
  }

 private:
  void axis() {
    for (const double at : ticks(0, x_.high, 8)) {
      svg_.line(x_(at), kGanttTop, x_(at), bottom_, "grid");
      svg_.text(x_(at), bottom_ + 16, format_seconds(at), Anchor::kMiddle, "tick");
    }
  }

  struct Lane {
    double top = 0, height = 0;
    std::vector<DrawnBar> bars;
  };

  std::vector<Lane> lanes_of(const GanttRank& rank, double coarseness) const {
    std::map<std::pair<Stream, int32_t>, std::vector<Bar>> bars;
    for (const Bar& bar : rank.bars) bars[{bar.stream, bar.lane}].push_back(bar);
    std::vector<Lane> lanes;
    for (const auto& [lane, of_lane] : bars) {
      const auto [top, height] = lane_place(lane.first);
      lanes.push_back({top, height, merge_narrow(of_lane, pixels_per_second_ / coarseness)});
    }
    return lanes;
  }

  double pixels(const DrawnBar& drawn) const { return length(drawn.bar) * pixels_per_second_; }

  void rank(const GanttRank& rank, const std::vector<Lane>& lanes, double y) {
    svg_.text(kGanttLeft - 10, y + 14, rank.label, Anchor::kEnd, "label");
    svg_.rect(x_.from, y, x_(gantt_.seconds) - x_.from, kCompute, "idle");
    for (const Lane& lane : lanes) {
      // By class and fifths of how much of a bar is busy.
      std::map<std::pair<BarClass, int64_t>, std::vector<std::pair<double, double>>> strokes;
      for (const DrawnBar& drawn : lane.bars) {
        if (pixels(drawn) > named_width_)
          draw(drawn, y + lane.top, lane.height);
        else
          strokes[{drawn.bar.bar_class, std::llround(5 * opacity(drawn))}].push_back(
              {x_(drawn.bar.start_seconds), x_(drawn.bar.end_seconds)});
      }
      for (const auto& [look, spans] : strokes)
        svg_.strokes(spans, y + lane.top + lane.height / 2, lane.height, css_class(look.first),
                     static_cast<double>(look.second) / 5);
    }
    const double busy = Gantt::busy_share(rank, gantt_.seconds);
    svg_.text(kChartWidth - kGanttRight + 10, y + 14, fmt::format("{:.0f} % busy", busy * 100),
              Anchor::kStart, "tick");
  }

  // A bar of no length is full, too.
  static double opacity(const DrawnBar& drawn) {
    const double share = drawn.busy_seconds / length(drawn.bar);
    return share < 0.99 ? std::max(0.2, share) : 1;
  }

  void draw(const DrawnBar& drawn, double y, double height) {
    const Bar& bar = drawn.bar;
    const double shown = opacity(drawn);
    svg_.rect(x_(bar.start_seconds), y, std::max(0.3, pixels(drawn)), height,
              css_class(bar.bar_class),
              fmt::format("{} · {}{}", bar.name, format_seconds(drawn.busy_seconds),
                          shown == 1 ? "" : " of " + format_seconds(length(bar))),
              shown);
  }

  const Gantt& gantt_;
  std::vector<size_t> ranks_;
  Scale x_;
  double bottom_;
  double pixels_per_second_ = 0;
  double named_width_ = -1;  // bars no wider are strokes
  Svg svg_;
};

}  // namespace

std::string css_class(BarClass bar_class) {
  std::string text = fmt::format("bar-{}", name(bar_class));
  std::replace(text.begin(), text.end(), ' ', '-');
  return text;
}

std::vector<DrawnBar> merge_narrow(const std::vector<Bar>& bars, double pixels_per_second) {
  std::vector<DrawnBar> merged;
  std::vector<int64_t> num_tasks;
  double longest = 0;  // of the tasks in the last bar: it lends the bar its colour
  const auto is_narrow = [&](double seconds) { return seconds * pixels_per_second < kNarrow; };
  for (const Bar& bar : bars) {
    if (!merged.empty()) {
      DrawnBar& last = merged.back();
      const double gap = (bar.start_seconds - last.bar.end_seconds) * pixels_per_second;
      const bool is_alike = last.bar.bar_class == bar.bar_class;
      const bool grows = is_narrow(length(last.bar)) || (is_alike && num_tasks.back() > 1);
      if (grows && gap < (is_alike ? kFineGap : kTouching) && is_narrow(length(bar))) {
        if (length(bar) > longest) last.bar.bar_class = bar.bar_class;
        longest = std::max(longest, length(bar));
        last.bar.end_seconds = std::max(last.bar.end_seconds, bar.end_seconds);
        last.busy_seconds += length(bar);
        ++num_tasks.back();
        continue;
      }
    }
    merged.push_back({bar, length(bar)});
    num_tasks.push_back(1);
    longest = length(bar);
  }
  for (size_t i = 0; i < merged.size(); ++i)
    if (num_tasks[i] > 1)
      merged[i].bar.name = fmt::format("{} and {} more", merged[i].bar.name, num_tasks[i] - 1);
  return merged;
}

std::string gantt_chart(const Gantt& gantt, const GanttChartOptions& options) {
  return GanttDrawing(gantt, options).draw();
}

}  // namespace piper::report
