// The console of every command: what is printed arrives, or the command says that it did not and
// fails; and nobody who closes a pipe or limits a file's size kills a command in the middle.
#pragma once

#include <fmt/core.h>
#include <piper/base/json_fwd.h>
#include <piper/base/printable.h>

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace piper::cli {

// Call first in main. A write into a closed pipe (SIGPIPE) or beyond the limit of a file's size
// (SIGXFSZ) becomes an error of that write. Standard streams that are closed are filled, so that no
// file that is opened later becomes one of them; writing to them fails as before.
void open_console();

// Whether something printed to standard output was lost. Thread-safe.
bool is_output_lost();

// Flushes standard output. When something was lost, says so on standard error, once a process, with
// `consequence` behind ("; step 12 is saved"), and returns false.
bool check_output(const std::string& consequence = "");

// "piper: <text>" on standard error, as one line; in silence where that is gone, too. Never throws.
void say_error(std::string_view text) noexcept;

// A line beside the result, on standard error likewise, as it is.
void say_aside(std::string_view line) noexcept;

// An argument of say() that has lines of its own, such as a table.
struct Lines {
  std::string text;
};

namespace internal {

template <class T>
constexpr bool kIsText = std::is_convertible_v<const T&, std::string_view>;

template <class T>
using Shown = std::conditional_t<kIsText<T> || std::is_same_v<T, Lines>, std::string, T>;

template <class T>
decltype(auto) shown(T& value) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, Lines>)
    return std::string(value.text);
  else if constexpr (kIsText<T>)
    return shown_line(std::string_view(value));
  else
    return (value);
}

void write_output(const std::string& text);

}  // namespace internal

// What a command prints to standard output, in fmt's format. A text among the arguments may come
// from a file, a folder or the command line: it stays in its line and does not steer the terminal
// (printable.h).
template <class... T>
void say(fmt::format_string<internal::Shown<std::remove_cvref_t<T>>...> format, T&&... arguments) {
  std::tuple<decltype(internal::shown(arguments))...> shown(internal::shown(arguments)...);
  internal::write_output(std::apply(
      [&](auto&... each) { return fmt::vformat(format, fmt::make_format_args(each...)); }, shown));
}

// A document, as every --json prints it.
void say_json(const Json& json);

}  // namespace piper::cli
