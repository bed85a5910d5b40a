// The strategy map: for every model (row) on every number of devices (column) the best strategy's
// MFU and mesh, as one self-contained HTML page with a heat map.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

struct MapCell {
  std::optional<double> mfu;  // empty: nothing fits
  std::string mesh;           // short: "pp 4, ep 8, dp 16"
  std::string detail;         // shown when the pointer rests on the cell, and in the table
  double step_seconds = 0;
  std::string why_not;  // without mfu: a sentence
};

struct StrategyMap {
  std::string cluster;
  std::vector<std::pair<std::string, std::string>> facts;  // label, text
  std::vector<int64_t> devices;                            // of the columns
  struct Row {
    std::string model;
    std::vector<MapCell> cells;  // as many as `devices`
  };
  std::vector<Row> rows;
};

// Reads what `piper map --json` printed. Throws InvalidInput with all problems.
StrategyMap parse_strategy_map(const Json& json, const std::string& source);

// The heat map alone. Colour runs from the lowest to the highest MFU of the map.
std::string map_svg(const StrategyMap& map);
// The whole page as UTF-8 text. Thread-safe. The same map gives the same bytes.
std::string render(const StrategyMap& map);

}  // namespace piper::report
