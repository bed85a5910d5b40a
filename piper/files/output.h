// The one way to open what Piper writes. Whatever the command, an input is never an output, a link
// is never followed, and a file that Piper did not write stays:
//
//   a symbolic link           refused, in the last part of the name; folders may be links
//   an input of this process  refused, by whatever name it was read (is_input() of file_reader.h)
//   another output's file     refused: two results of one command have two names
//   a file of somebody else   refused, unless --force was given; Piper's say so (kMark, kWrittenBy)
//   a folder, a socket, ...   refused
//   a terminal, a pipe        written in place; a pipe that nobody reads is refused
//
// Refusals are InvalidInput, one line each. All functions may be called by any thread.
#pragma once

#include <piper/base/json_fwd.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace piper::files {

// In the head of each text that Piper writes, in whatever way the format has comments. JSON has
// the key kWrittenBy in its place.
inline constexpr std::string_view kMark = "ritten by piper";  // with either first letter

// Whether a file that begins like this is Piper's. What is empty is nobody's, and may be replaced.
bool is_ours(std::string_view head);

// What may stand where a file is to be written.
enum class Existing {
  kOurs,    // nothing, or what Piper wrote
  kRecord,  // a file that the caller has read and goes on with: it has seen whose it is
  kAny,     // any regular file that is no input
};

// Throws InvalidInput where `path` may not be written; IoError where it cannot be looked at.
void require_output(const std::filesystem::path& path, Existing existing);

// The same before long work begins, for the file that `flag` names; holds a pipe open until it is
// written, and refuses a file that another flag has named.
void claim_output(const std::filesystem::path& path, std::string_view flag);

// What --force asks for: from now on this process replaces files that Piper did not write, too.
void replace_foreign_files();

// Removes a file that Piper wrote; what is not there stays so, anything else is left alone.
// Returns whether it is gone. Throws IoError.
bool remove_output(const std::filesystem::path& path);

// Writes atomically: a temporary file beside it, fsync, rename. `text` holds kMark or kWrittenBy in
// its head; a file that holds it already is left as it is. Throws InvalidInput as require_output()
// does, IoError naming path and cause.
void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Existing existing = Existing::kOurs);
// Indented by 2, an object behind the key kWrittenBy. A number that is not finite becomes null.
void write_json_file(const std::filesystem::path& path, const Json& json);

// The same text for whoever writes a part of it first. `json` is an object.
std::string json_file_text(const Json& json);

// Whether `path` still leads, without a link, to the open file.
bool is_still(const std::filesystem::path& path, int fd);
// Whether the file is there and holds these bytes.
bool holds(const std::filesystem::path& path, std::string_view text);

// Opens a file that grows, made where it is not there, at its beginning (empty) or its end.
// The caller closes it. Throws as require_output() does, and IoError.
enum class Start { kEmpty, kEnd };
int open_output(const std::filesystem::path& path, Start start, Existing existing);

}  // namespace piper::files
