// Memory of every rank: the predicted parts stacked, the measured peak and the limit as marks.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <array>

namespace piper::report {
namespace {

constexpr double kMemoryLeft = 130, kMemoryRight = 190, kMemoryBar = 18, kMemoryRow = 30,
                 kMemoryTop = 6;
constexpr size_t kMaxMemoryRanks = 32;
// A limit further than this beyond the fullest rank would squeeze the bars: it is told in words.
constexpr double kShownLimit = 2.5;

// Colours by the usual names; others take the further colours in turn.
std::string css_class(const std::string& component, size_t index) {
  constexpr std::array kNamed = {"weights", "gradients", "optimizer", "activations", "buffers"};
  for (const char* known : kNamed) {
    if (component == known) return fmt::format("memory-{}", known);
  }
  return fmt::format("memory-other{}", index % 3);
}

double largest(const std::vector<RankComparison>& ranks) {
  int64_t bytes = 0;
  for (const RankComparison& rank : ranks) {
    int64_t sum = 0;
    for (const auto& [name, part] : rank.predicted_components) sum += part;
    bytes = std::max(
        {bytes, sum, rank.predicted_peak_bytes.value_or(0), rank.measured_peak_bytes.value_or(0)});
  }
  return static_cast<double>(bytes);
}

std::string text_of(const char* what, std::optional<int64_t> bytes) {
  return fmt::format("{} {}", what, bytes ? format_bytes(static_cast<double>(*bytes)) : "–");
}

class MemoryChart {
 public:
  MemoryChart(const std::vector<RankComparison>& ranks, double high)
      : ranks_(ranks),
        x_{0, high, kMemoryLeft, kChartWidth - kMemoryRight},
        bottom_(kMemoryTop + kMemoryRow * static_cast<double>(ranks.size())),
        svg_(kChartWidth, bottom_ + 30, "Memory of every rank by component") {}

  std::string draw() {
    axis();
    for (size_t i = 0; i < ranks_.size(); ++i)
      rank(ranks_[i], kMemoryTop + kMemoryRow * static_cast<double>(i));
    return svg_.finish();
  }

 private:
  // Round in binary units: the step is a power of two.
  void axis() {
    double step = 1;
    while (x_.high / step > 8) step *= 2;
    for (double at = 0; at <= x_.high; at += step) {
      svg_.line(x_(at), kMemoryTop, x_(at), bottom_, "grid");
      svg_.text(x_(at), bottom_ + 16, format_bytes(at), Anchor::kMiddle, "tick");
    }
  }

  void rank(const RankComparison& rank, double y) {
    std::string label = fmt::format("rank {}", rank.rank);
    if (rank.stage) label += fmt::format(" · stage {}", *rank.stage);
    svg_.text(kMemoryLeft - 10, y + kMemoryBar - 4, label, Anchor::kEnd, "label");
    parts(rank, y);
    mark(rank.limit_bytes, y, "limit", "limit");
    mark(rank.measured_peak_bytes, y, "measured", "measured-mark");
    svg_.text(kChartWidth - kMemoryRight + 10, y + 8,
              text_of("predicted", rank.predicted_peak_bytes), Anchor::kStart, "tick");
    svg_.text(kChartWidth - kMemoryRight + 10, y + 20,
              text_of("measured", rank.measured_peak_bytes), Anchor::kStart, "tick strong");
  }

  void parts(const RankComparison& rank, double y) {
    ByteComponents components = rank.predicted_components;
    if (components.empty() && rank.predicted_peak_bytes) {
      components.emplace_back("predicted peak", *rank.predicted_peak_bytes);
    }
    double from = 0;
    for (size_t i = 0; i < components.size(); ++i) {
      const auto bytes = static_cast<double>(components[i].second);
      svg_.rect(x_(from), y, x_(from + bytes) - x_(from), kMemoryBar,
                css_class(components[i].first, i), components[i].first + " " + format_bytes(bytes));
      from += bytes;
    }
  }

  void mark(std::optional<int64_t> bytes, double y, const char* what, const char* css_class) {
    if (!bytes || static_cast<double>(*bytes) > x_.high) return;
    const double x = x_(static_cast<double>(*bytes));
    svg_.line(x, y - 4, x, y + kMemoryBar + 4, css_class, text_of(what, bytes));
  }

  const std::vector<RankComparison>& ranks_;
  Scale x_;
  double bottom_;
  Svg svg_;
};

std::vector<LegendEntry> entries(const std::vector<RankComparison>& ranks) {
  std::vector<LegendEntry> result;
  for (const RankComparison& rank : ranks) {
    for (size_t i = 0; i < rank.predicted_components.size(); ++i) {
      const std::string& name = rank.predicted_components[i].first;
      const auto same = [&](const LegendEntry& e) { return e.text == name; };
      if (std::none_of(result.begin(), result.end(), same)) {
        result.push_back({css_class(name, i), name});
      }
    }
  }
  result.push_back({"measured-mark", "measured peak"});
  return result;
}

}  // namespace

std::string memory_section(const Comparison* comparison) {
  if (comparison == nullptr || comparison->ranks.empty()) {
    return absent("Neither predicted nor measured memory was kept with this run.");
  }
  const size_t num_shown = std::min(comparison->ranks.size(), kMaxMemoryRanks);
  const std::vector<RankComparison> ranks(comparison->ranks.begin(),
                                          comparison->ranks.begin() + static_cast<long>(num_shown));
  const double fullest = largest(ranks);
  if (fullest == 0) return absent("The memory of no rank is known.");
  double high = fullest;
  std::optional<int64_t> limit;
  for (const RankComparison& rank : ranks) limit = std::max(limit, rank.limit_bytes);
  const bool limit_shown = limit && static_cast<double>(*limit) <= fullest * kShownLimit;
  if (limit_shown) high = std::max(high, static_cast<double>(*limit));
  std::vector<LegendEntry> marks = entries(ranks);
  if (limit_shown) marks.push_back({"limit", "limit of a rank"});

  std::string out = legend(marks) + MemoryChart(ranks, high * 1.02).draw();
  if (limit && !limit_shown) {
    out += paragraph(fmt::format("The limit of a rank, {}, lies far to the right of this chart.",
                                 format_bytes(static_cast<double>(*limit))));
  }
  if (num_shown < comparison->ranks.size()) {
    out += paragraph(
        fmt::format("The first {} of {} ranks are shown.", num_shown, comparison->ranks.size()));
  }
  return out;
}

}  // namespace piper::report
