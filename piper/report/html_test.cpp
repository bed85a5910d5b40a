#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/report/html.h>
#include <piper/report/svg.h>

using namespace piper::report;

TEST_CASE("text cannot become markup, and broken text cannot break the page") {
  CHECK(escape("<b a=\"1\" c='2'>&amp;") == "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;");
  CHECK(escape("Qwen · 漢 😀\n") == "Qwen · 漢 😀\n");
  CHECK(escape("a\x01"
               "b\xFF"
               "c\xC3") ==
        "a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD"
        "c\xEF\xBF\xBD");
}

TEST_CASE("a table aligns its numbers and marks its rows") {
  const HtmlTable table{
      .columns = {{"name"}, {"<bytes>", Align::kRight}},
      .rows = {{.cells = {{"a&b", "strong"}, {"1"}}, .css_class = "chosen"}, {.cells = {{"c"}}}}};
  CHECK(to_html(table) ==
        "<div class=\"scroll\"><table>\n"
        "<thead><tr><th>name</th><th class=\"number\">&lt;bytes&gt;</th></tr></thead>\n<tbody>\n"
        "<tr class=\"chosen\"><td class=\"strong\">a&amp;b</td><td class=\"number\">1</td></tr>\n"
        "<tr><td>c</td><td class=\"number\"></td></tr>\n</tbody>\n</table></div>\n");
  CHECK_THROWS_AS(to_html({.columns = {{"x"}}, .rows = {{.cells = {{"1"}, {"2"}}}}}),
                  piper::InternalError);
}

TEST_CASE("a drawing escapes its texts and writes short numbers") {
  Svg svg(100, 20.5, "a <picture>");
  svg.rect(1, 2.005, 1.0 / 3, 4, "c", "<tip>");
  svg.text(-0.0001, 5, "a&b", Anchor::kEnd, "label");
  CHECK(svg.finish() ==
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 100 20.5\" role=\"img\" "
        "aria-label=\"a &lt;picture&gt;\">\n"
        "<rect class=\"c\" x=\"1\" y=\"2\" width=\"0.33\" "
        "height=\"4\"><title>&lt;tip&gt;</title></rect>\n"
        "<text class=\"label\" x=\"0\" y=\"5\" text-anchor=\"end\">a&amp;b</text>\n</svg>\n");
}
