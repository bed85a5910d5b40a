// Inline SVG, written element by element. Coordinates are in pixels of the view box; colours come
// from the page's style sheet through classes, so that a drawing follows the light and the dark
// theme.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace piper::report {

inline constexpr double kChartWidth = 1080;  // of every drawing of a page

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  // `description` is read to those who cannot see the picture.
  Svg(double width, double height, std::string_view description);

  // `title` appears when the pointer rests on the element; empty = none.
  void rect(double x, double y, double width, double height, std::string_view css_class,
            std::string_view title = {}, double opacity = 1);
  void line(double x1, double y1, double x2, double y2, std::string_view css_class,
            std::string_view title = {});
  void text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            std::string_view css_class = {});
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view css_class);
  // Strokes along y, each from its first to its second x, ascending; `opacity` of all of them.
  void strokes(const std::vector<std::pair<double, double>>& spans, double y, double thickness,
               std::string_view css_class, double opacity = 1);
  void circle(double x, double y, double radius, std::string_view css_class,
              std::string_view title = {});

  std::string finish();  // the whole element; the object is used up

 private:
  void close(std::string_view element, std::string_view title);

  std::string out_;
};

}  // namespace piper::report
