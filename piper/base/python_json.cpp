#include <piper/base/json.h>
#include <piper/base/python_json.h>

#include <limits>

namespace piper {
namespace {

// Strict JSON cannot hold the words. Each is replaced by a string of the same length, so that the
// bytes that messages name stay right; it is made of a character that Python escapes and that
// nobody writes.
constexpr char kMark = '\x7f';

struct Word {
  std::string_view text;
  double value;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Word kWords[] = {{"-Infinity", -kInfinity},
                           {"Infinity", kInfinity},
                           {"NaN", std::numeric_limits<double>::quiet_NaN()}};

std::string marked(const Word& word) {
  return '"' + std::string(word.text.size() - 2, kMark) + '"';
}

// A word is a whole value: what stands before and after it in JSON is no letter, digit or sign, and
// it is no key.
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  constexpr std::string_view kSpace = " \t\r\n", kAround = " \t\r\n,:[]{}";
  const size_t next = text.find_first_not_of(kSpace, end);
  if (next != std::string_view::npos && text[next] == ':') return false;
  return (begin == 0 || kAround.find(text[begin - 1]) != std::string_view::npos) &&
         (end == text.size() || kAround.find(text[end]) != std::string_view::npos);
}

// Beyond strings only; a backslash in a string hides the character after it.
bool mark_words(std::string& text) {
  bool found = false, in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const Word& word : kWords) {
        if (std::string_view(text).substr(i, word.text.size()) != word.text ||
            !stands_alone(text, i, i + word.text.size()))
          continue;
        text.replace(i, word.text.size(), marked(word));
        i += word.text.size() - 1;
        found = true;
        break;
      }
    }
  }
  return found;
}

void restore(Json& value) {
  if (value.is_structured()) {
    for (Json& inner : value) restore(inner);
  } else if (value.is_string()) {
    const std::string quoted = '"' + value.get<std::string>() + '"';
    for (const Word& word : kWords)
      if (quoted == marked(word)) value = word.value;
  }
}

}  // namespace

Json parse_python_json(std::string_view text, const std::string& source) {
  std::string strict(text);
  const bool has_marks_already = strict.find(kMark) != std::string::npos;
  if (has_marks_already || !mark_words(strict)) return parse_json(text, source);
  Json json = parse_json(strict, source);
  restore(json);
  return json;
}

}  // namespace piper
