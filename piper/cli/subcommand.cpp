#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/standard_input.h>
#include <piper/cli/subcommand.h>
#include <piper/files/output.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <type_traits>

namespace piper::cli {
namespace {

Check of(const CLI::Validator& validator) {
  return {[validator](const std::string& text) {
            std::string copy = text;
            return validator(copy);
          },
          validator.get_description()};
}

// "128K" -> "131072", "1M" -> "1048576"; what is no such number stays as it is, for the checks to
// refuse.
std::string without_suffix(const std::string& text) {
  const int shift = text.ends_with('K') || text.ends_with('k')   ? 10
                    : text.ends_with('M') || text.ends_with('m') ? 20
                                                                 : 0;
  if (shift == 0) return text;
  int64_t value = 0;
  const char* last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < 0 || value > (INT64_MAX >> shift)) return text;
  return std::to_string(value << shift);
}

// Its folder exists, so that long work does not end in an error.
std::string problem_of_output(const std::string& text) {
  const std::filesystem::path folder = std::filesystem::path(text).parent_path();
  std::error_code error;
  if (text.empty()) return "is empty; allowed: the name of a file";
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return "";
  return fmt::format("is {}; allowed: a file in a folder that exists ('{}' does not)", text,
                     folder.string());
}

struct NamedOutput {
  const CLI::Option* option;
  const std::string* path;
};
std::vector<NamedOutput>& outputs() {
  static std::vector<NamedOutput> all;
  return all;
}

constexpr const char* kForce = "--force";

}  // namespace

Check integer_in(int64_t least, int64_t most) { return of(CLI::Range(least, most)); }

// CLI11's own range holds NaN.
Check number_in(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            const bool number = error == std::errc() && end == text.data() + text.size();
            if (number && std::isfinite(value) && value >= least && value <= most)
              return std::string();
            return fmt::format("is {}; allowed: a number from {} to {}", text, least, most);
          },
          fmt::format("FLOAT in [{} - {}]", least, most)};
}

Check positive_number() {
  return {[](const std::string& text) {
            double value = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            const bool number = error == std::errc() && end == text.data() + text.size();
            if (number && std::isfinite(value) && value > 0) return std::string();
            return fmt::format("is {}; allowed: a number greater than 0", text);
          },
          "POSITIVE"};
}

// CLI11 reads -1 as an unsigned integer.
Check not_negative() {
  return {[](const std::string& text) {
            const bool digits =
                !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
            return digits ? std::string()
                          : fmt::format("is {}; allowed: an integer from 0 to 2^64 - 1", text);
          },
          ""};
}

Check one_of(const std::vector<std::string>& words) { return of(CLI::IsMember(words)); }
Check existing_file() {
  return {[](const std::string& text) {
            std::string copy = text;
            return text == kStandardInput ? std::string() : CLI::ExistingFile(copy);
          },
          "FILE"};
}
Check existing_folder() { return of(CLI::ExistingDirectory); }
Check existing_path() { return of(CLI::ExistingPath); }

Flag Flag::check(const Check& check) {
  option_->check(CLI::Validator(check.problem, check.shown));
  return *this;
}

Flag Flag::takes_suffixes() {
  option_->transform(CLI::Validator(
      [](std::string& text) {
        text = without_suffix(text);
        return std::string();
      },
      ""));
  return *this;
}

Flag Flag::required(bool is) {
  option_->required(is);
  return *this;
}

Flag Flag::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Flag Flag::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}

Flag Flag::excludes(Flag other) {
  option_->excludes(other.option_);
  return *this;
}

Flag Flag::one_each() {
  option_->allow_extra_args(false);
  return *this;
}

Flag Flag::hidden() {
  option_->group("");
  return *this;
}

Flag Flag::show_default() {
  option_->capture_default_str();
  return *this;
}

template <class T>
Flag Subcommand::add_option(const std::string& names, T& value, const std::string& summary) {
  CLI::Option* option = app_->add_option(names, value, summary);
  // An empty text is most likely a variable of a script that is not set.
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>> ||
                std::is_same_v<T, std::optional<std::string>>)
    option->check(CLI::Validator(
        [](const std::string& text) {
          return text.empty() ? std::string("is empty") : std::string();
        },
        ""));
  return Flag(option);
}

template <class T>
Flag Subcommand::add_flag(const std::string& names, T& value, const std::string& summary) {
  return Flag(app_->add_flag(names, value, summary));
}

Flag Subcommand::add_output(const std::string& name, std::string& path,
                            const std::string& summary) {
  CLI::Option* option = app_->add_option(name, path, summary);
  option->check(CLI::Validator(problem_of_output, "FILE"));
  outputs().push_back({option, &path});
  add_force();
  return Flag(option);
}

void Subcommand::add_force() {
  if (app_->get_option_no_throw(kForce) != nullptr) return;
  app_->add_flag_callback(kForce, files::replace_foreign_files,
                          "replace a file of that name even where Piper did not write it");
}

void claim_outputs() {
  for (const NamedOutput& output : outputs())
    if (output.option->count() > 0) files::claim_output(*output.path, output.option->get_name());
}

#define PIPER_OPTION(...) \
  template Flag Subcommand::add_option(const std::string&, __VA_ARGS__&, const std::string&)
PIPER_OPTION(std::string);
PIPER_OPTION(int);
PIPER_OPTION(int64_t);
PIPER_OPTION(uint64_t);
PIPER_OPTION(double);
PIPER_OPTION(std::optional<std::string>);
PIPER_OPTION(std::optional<int64_t>);
PIPER_OPTION(std::optional<double>);
PIPER_OPTION(std::vector<std::string>);
PIPER_OPTION(std::vector<int>);
PIPER_OPTION(std::vector<int64_t>);
PIPER_OPTION(std::vector<double>);
#undef PIPER_OPTION
template Flag Subcommand::add_flag(const std::string&, bool&, const std::string&);

void Subcommand::moved(const std::string& name, const std::string& run) {
  const std::string line = fmt::format("{} {} moved: run {}", app_->get_name(), name, run);
  app_->add_option_function<std::vector<std::string>>(
          name, [line](const std::vector<std::string>&) { throw InvalidInput(line); })
      ->expected(0, 1)  // with its value, where it had one
      ->group("");
}

Flag Subcommand::declared(const std::string& name) { return Flag(app_->get_option(name)); }

Subcommand Subcommand::add_subcommand(const std::string& name, const std::string& summary) {
  return Subcommand(app_->add_subcommand(name, summary));
}

void Subcommand::require_subcommand() { app_->require_subcommand(1); }
void Subcommand::footer(const std::string& text) { app_->footer(text); }
void Subcommand::take_the_rest_unread() { app_->prefix_command(); }
void Subcommand::take_all_unread() {
  app_->prefix_command();
  app_->set_help_flag();
}
bool Subcommand::parsed() const { return app_->parsed(); }
std::vector<std::string> Subcommand::rest() const { return app_->remaining(); }

}  // namespace piper::cli
