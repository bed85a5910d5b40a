// How a command declares its flags. CLI11 reads them, and is seen by subcommand.cpp and program.cpp
// alone: its templates, in each of fifty files, took longer to compile than the planner. The words
// are CLI11's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace piper::cli {

// What a value given to a flag must be. `problem` says what is wrong with a text, "" when nothing
// is; `shown` stands in --help.
struct Check {
  std::function<std::string(const std::string& text)> problem;
  std::string shown;
};

Check integer_in(int64_t least, int64_t most);
Check number_in(double least, double most);  // finite
Check positive_number();
Check not_negative();  // an unsigned integer of 64 bits
Check one_of(const std::vector<std::string>& words);
Check existing_file();  // or - for standard input
Check existing_folder();
Check existing_path();

// One flag or positional, as declared; a handle. All return the same flag.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag check(const Check& check);
  // Lets an integer have a suffix, read before its checks: 128K is 131072 and 1M is 1048576, as
  // lengths of contexts are named.
  Flag takes_suffixes();
  Flag required(bool is = true);
  Flag type_name(const std::string& name);
  Flag delimiter(char between);  // of the values of a list
  Flag
  one_each();  // of a list: one value after each mention, so that what follows is not taken too
  Flag excludes(Flag other);
  Flag show_default();  // the value that it holds now, in --help
  Flag hidden();        // read as before, and not in --help

 private:
  CLI::Option* option_;
};

// A command or a command of a command; a handle, valid as long as the program runs.
class Subcommand {
 public:
  explicit Subcommand(CLI::App* app) : app_(app) {}

  // `value` outlives parsing and keeps what it holds when the flag is not given. T: those that
  // subcommand.cpp names.
  template <class T>
  Flag add_option(const std::string& names, T& value, const std::string& summary = "");
  template <class T>
  Flag add_flag(const std::string& names, T& value, const std::string& summary = "");
  // A file that the command writes. Adds --force once. Once all flags are read, claim_outputs()
  // claims it (files/output.h), so that a command that may not write it ends before it works.
  Flag add_output(const std::string& name, std::string& path, const std::string& summary);
  // The same for a command that names files itself: --force alone.
  void add_force();
  // Takes a flag that is now another program's, hidden, and refuses it (InvalidInput): "validate
  // --phases moved: run piper-studies phases".
  void moved(const std::string& name, const std::string& run);
  Flag declared(const std::string& name);  // one that was added before

  Subcommand add_subcommand(const std::string& name, const std::string& summary);
  void require_subcommand();
  void footer(const std::string& text);
  void take_the_rest_unread();  // what follows belongs to another program
  void take_all_unread();       // the same, --help too

  // After parsing.
  bool parsed() const;
  std::vector<std::string> rest() const;

 private:
  CLI::App* app_;
};

// Claims the outputs of the command that was parsed. Throws InvalidInput, IoError.
void claim_outputs();

}  // namespace piper::cli
