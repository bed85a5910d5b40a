#include <fmt/format.h>
#include <piper/report/html.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace piper::report {
namespace {

// Two digits are enough for a pixel; zeros at the end are left out (a chart has thousands of
// numbers).
std::string number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

// ".5" for 5.
std::string tenths(int64_t value) {
  std::string text = number(static_cast<double>(value) / 10);
  if (text.starts_with("0.")) text.erase(0, 1);
  return text;
}

const char* name(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "";
}

}  // namespace

Svg::Svg(double width, double height, std::string_view description)
    : out_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
                       "role=\"img\" aria-label=\"{}\">\n",
                       number(width), number(height), escape(description))) {}

void Svg::close(std::string_view element, std::string_view title) {
  out_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></{}>\n", escape(title), element);
}

void Svg::rect(double x, double y, double width, double height, std::string_view css_class,
               std::string_view title, double opacity) {
  out_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
                      escape(css_class), number(x), number(y), number(width), number(height));
  if (opacity < 1) out_ += fmt::format(" fill-opacity=\"{}\"", number(opacity));
  close("rect", title);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class,
               std::string_view title) {
  out_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"",
                      escape(css_class), number(x1), number(y1), number(x2), number(y2));
  close("line", title);
}

void Svg::text(double x, double y, std::string_view text, Anchor anchor,
               std::string_view css_class) {
  out_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                      escape(css_class), number(x), number(y), name(anchor), escape(text));
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points,
                   std::string_view css_class) {
  out_ += fmt::format("<polyline class=\"{}\" points=\"", escape(css_class));
  for (const auto& [x, y] : points) out_ += number(x) + "," + number(y) + " ";
  out_ += "\"/>\n";
}

void Svg::strokes(const std::vector<std::pair<double, double>>& spans, double y, double thickness,
                  std::string_view css_class, double opacity) {
  out_ +=
      fmt::format("<path class=\"{}\" stroke-width=\"{}\"", escape(css_class), number(thickness));
  if (opacity < 1) out_ += fmt::format(" stroke-opacity=\"{}\"", number(opacity));
  out_ += " d=\"";
  // In tenths of a pixel, each from where the one before ends as it is written, so that rounding
  // does not add up; what touches is one.
  int64_t at = 0, end = 0;
  const auto flush = [&] {
    if (end > at) out_ += "h" + tenths(end - at);
    at = end;
  };
  for (const auto& [from, to] : spans) {
    const int64_t begin = std::max<int64_t>(std::llround(10 * from), end);
    if (begin > end || at == 0) {
      flush();
      out_ += at == 0 ? fmt::format("M{} {}", tenths(begin), number(y))
                      : fmt::format("m{} 0", tenths(begin - at));
      at = end = begin;
    }
    end = std::max<int64_t>(std::llround(10 * to), begin + 1);
  }
  flush();
  out_ += "\"/>\n";
}

void Svg::circle(double x, double y, double radius, std::string_view css_class,
                 std::string_view title) {
  out_ += fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"", escape(css_class),
                      number(x), number(y), number(radius));
  close("circle", title);
}

std::string Svg::finish() { return std::move(out_) + "</svg>\n"; }

}  // namespace piper::report
