// How text from outside stands in a message: it must not steer the terminal that shows it, nor fill
// it. What a terminal obeys or hides becomes '?': control characters (C1 too), the marks that turn
// the direction of writing, Unicode's ends of lines and paragraphs, and bytes that are no UTF-8.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace piper {

// A key or a value, of one line; what is beyond 60 bytes is "...". No UTF-8 character is cut.
std::string printable(std::string_view text);

// A whole problem, whatever went into it: the same with 1000 bytes.
std::string one_line(std::string_view what);

// The same, as long as it is: a name that the reader must find again.
std::string shown_line(std::string_view text);

// Text of several lines: their ends and tabulators stay.
std::string shown_lines(std::string_view text);

// A JSON document as text: what the others replace is written \uXXXX there, so that it reads back.
// Bytes that are no UTF-8 become U+FFFD.
std::string shown_json(std::string_view text);

// Whether the text is UTF-8 as RFC 3629 has it: shortest forms, no surrogates.
bool is_utf8(std::string_view text);

// The lines of a text, without their ends.
std::vector<std::string> lines_of(std::string_view text);

// A list that may be as long as a file: 20 entries, and behind them "... and 7 more problems" where
// `what` is "problems".
std::vector<std::string> first_of(std::vector<std::string> entries, std::string_view what);

}  // namespace piper
