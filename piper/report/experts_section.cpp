// How evenly the router loads the experts: a map of layers by experts, and the imbalance over the
// steps.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/metric_charts.h>
#include <piper/report/sections.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace piper::report {
namespace {

constexpr double kHeatLeft = 84, kHeatRight = 120, kHeatTop = 4;
constexpr int kNumShades = 9;  // classes heat-0 .. heat-8, heat-4 = balanced

// The shade of a load relative to the mean: 0 -> 0, 1 -> the middle, 2 and more -> the last.
int shade(double load) {
  return std::clamp(static_cast<int>(load / 2 * kNumShades), 0, kNumShades - 1);
}

// Cells of a layer's experts; `load` is 1 where an expert has its even share.
void draw_layer(Svg& svg, const LayerRows& layer, double y, double height) {
  const double sum = std::accumulate(layer.rows.begin(), layer.rows.end(), 0.0);
  const auto count = static_cast<double>(layer.rows.size());
  const double width = (kChartWidth - kHeatLeft - kHeatRight) / count;
  const double gap = width > 6 ? 1 : 0;
  for (size_t e = 0; e < layer.rows.size(); ++e) {
    const double share = sum > 0 ? static_cast<double>(layer.rows[e]) / sum : 0;
    const double load = share * count;
    svg.rect(kHeatLeft + static_cast<double>(e) * width, y, width - gap, height - 1,
             fmt::format("heat-{}", shade(load)),
             fmt::format("layer {} · expert {}: {} rows, {:.2f} of an even share", layer.layer, e,
                         layer.rows[e], load));
    if (width >= 36 && height >= 16) {
      svg.text(kHeatLeft + (static_cast<double>(e) + 0.5) * width, y + height / 2 + 3,
               fmt::format("{:.2f}", load), Anchor::kMiddle,
               shade(load) == 0 || shade(load) == kNumShades - 1 ? "cell on-dark" : "cell");
    }
  }
}

std::string heat_map(const std::vector<LayerRows>& layers) {
  const double height = layers.size() <= 16 ? 24 : layers.size() <= 40 ? 14 : 8;
  const double bottom = kHeatTop + height * static_cast<double>(layers.size());
  Svg svg(kChartWidth, bottom + 22,
          "Rows of every expert of every layer, relative to an even share");
  const size_t every = height >= 14 ? 1 : 4;
  size_t widest = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const double y = kHeatTop + height * static_cast<double>(i);
    draw_layer(svg, layers[i], y, height);
    widest = std::max(widest, layers[i].rows.size());
    if (i % every != 0) continue;
    svg.text(kHeatLeft - 10, y + height / 2 + 4, fmt::format("layer {}", layers[i].layer),
             Anchor::kEnd, "tick");
    svg.text(kChartWidth - kHeatRight + 10, y + height / 2 + 4,
             fmt::format("busiest × {:.2f}", layers[i].imbalance()), Anchor::kStart, "tick");
  }
  svg.text((kHeatLeft + kChartWidth - kHeatRight) / 2, bottom + 16,
           fmt::format("expert 0 to {}", widest - 1), Anchor::kMiddle, "label");
  return svg.finish();
}

std::string load_map(const ExpertRows& load) {
  std::vector<LayerRows> layers;
  for (const LayerRows& layer : load.layers) {
    if (!layer.rows.empty()) layers.push_back(layer);
  }
  if (layers.empty()) return absent("The model has no mixture layers.");
  std::string out = fmt::format("<h3>Share of the rows, 1 = even <small>over {} {}</small></h3>\n",
                                load.num_steps, load.num_steps == 1 ? "step" : "steps");
  out += legend({{"heat-0", "none"}, {"heat-4", "even share"}, {"heat-8", "twice that or more"}});
  return out + heat_map(layers);
}

// Experts from top to bottom, spans of steps from left to right (Piper, Fig. 9).
std::string time_map(const ExpertRows& load, const LayerRows& layer) {
  const auto experts = static_cast<double>(layer.rows.size());
  const double height = std::clamp(160 / experts, 3.0, 16.0);
  const double width =
      (kChartWidth - kHeatLeft - kHeatRight) / static_cast<double>(load.span_ends.size());
  Svg svg(kChartWidth, kHeatTop + height * experts + 22,
          fmt::format("Rows of the experts of layer {} over the steps", layer.layer));
  for (size_t span = 0; span < layer.over_time.size(); ++span) {
    const std::vector<int64_t>& rows = layer.over_time[span];
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    for (size_t e = 0; e < rows.size(); ++e) {
      const double share = sum > 0 ? static_cast<double>(rows[e]) / sum * experts : 0;
      svg.rect(kHeatLeft + static_cast<double>(span) * width,
               kHeatTop + static_cast<double>(e) * height, width - (width > 6 ? 1 : 0),
               height - (height > 4 ? 1 : 0), fmt::format("heat-{}", shade(share)),
               fmt::format("layer {} · expert {} · up to step {}: {} rows, {:.2f} of an even share",
                           layer.layer, e, load.span_ends[span], rows[e], share));
    }
  }
  svg.text(kHeatLeft - 10, kHeatTop + height * experts / 2 + 4,
           fmt::format("layer {}", layer.layer), Anchor::kEnd, "tick");
  svg.text((kHeatLeft + kChartWidth - kHeatRight) / 2, kHeatTop + height * experts + 16,
           fmt::format("step {} to {}; experts 0 to {} from top to bottom", 1,
                       load.span_ends.back(), layer.rows.size() - 1),
           Anchor::kMiddle, "label");
  return svg.finish();
}

// A deep model shows only its least balanced layers.
constexpr size_t kMostTimeMaps = 4;

std::string time_maps(const ExpertRows& load) {
  std::vector<const LayerRows*> layers;
  for (const LayerRows& layer : load.layers)
    if (!layer.rows.empty() && layer.over_time.size() == load.span_ends.size())
      layers.push_back(&layer);
  if (load.span_ends.size() < 2 || layers.empty()) return "";
  if (layers.size() > kMostTimeMaps) {
    std::stable_sort(layers.begin(), layers.end(), [](const LayerRows* a, const LayerRows* b) {
      return a->imbalance() > b->imbalance();
    });
    layers.resize(kMostTimeMaps);
  }
  std::string out = "<h3>Share of the rows over the steps</h3>\n";
  for (const LayerRows* layer : layers) out += time_map(load, *layer);
  return out;
}

// What moved in a run that rebalances, in words; empty where nothing did.
std::string migrations(const std::vector<StepMetrics>& metrics) {
  int64_t decisions = 0;
  double experts = 0, bytes = 0, rebalancing = 0, steps = 0;
  for (const StepMetrics& row : metrics) {
    decisions += row["migrated_experts"].value_or(0) > 0;
    experts += row["migrated_experts"].value_or(0);
    bytes += row["migrated_bytes"].value_or(0);
    rebalancing += row["rebalance_seconds"].value_or(0);
    steps += row["step_seconds"].value_or(0);
  }
  if (decisions == 0) return "";
  return fmt::format(
      "<p>{:.0f} experts moved to another rank, in {} of {} gaps between steps: {} sent, {} in "
      "all, {} "
      "of the run.</p>\n",
      experts, decisions, metrics.size() - 1, format_bytes(bytes), format_seconds(rebalancing),
      format_percent(rebalancing / (rebalancing + steps)));
}

}  // namespace

std::string experts_section(const ExpertRows* rows, const std::vector<StepMetrics>& metrics) {
  std::string out = rows == nullptr ? absent("The load of the experts was not recorded.")
                                    : load_map(*rows) + time_maps(*rows);
  return out + migrations(metrics) + metric_charts(MetricChart::kImbalance, metrics) +
         metric_charts(MetricChart::kDropped, metrics);
}

}  // namespace piper::report
