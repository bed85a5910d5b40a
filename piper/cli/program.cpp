#include <fmt/core.h>
#include <fmt/ranges.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/base/suggest.h>
#include <piper/cli/console.h>
#include <piper/cli/limits.h>
#include <piper/cli/program.h>
#include <piper/cli/stop_signals.h>
#include <piper/comm/launch.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <new>
#include <string>
#include <system_error>
#include <vector>

namespace piper::cli {
namespace {

// libtorch's exceptions end in a stack trace, and its allocator for CPUs throws a c10::Error that
// its text alone tells from others (this file is built without libtorch's headers, too).
std::string without_trace(std::string text) {
  for (const char* start : {"\nException raised from", " (no backtrace available)", "\nframe #"})
    text = text.substr(0, text.find(start));
  if (text.find("can't allocate memory") == std::string::npos) return text;
  const size_t tried = text.find("you tried to allocate ");
  return fmt::format(
      "out of memory{}; `piper estimate` breaks down what a strategy needs; allowed: a "
      "smaller micro-batch, --recompute full, or a smaller model",
      tried == std::string::npos
          ? ""
          : ": " + text.substr(tried, text.find(" bytes", tried) + 6 - tried));
}

// "process 3: " among the processes that a launcher started, "" without one.
std::string place_in_launch() {
  try {
    const auto launch = comm::launch_from();
    return launch ? fmt::format("process {}: ", launch->process) : "";
  } catch (const InvalidInput&) {
    return "";
  }
}

// A line each; `who` stands before it.
int complain(const std::vector<std::string>& problems, int code, const std::string& who = "") {
  for (const std::string& problem : problems) say_error(who + problem);
  return code;
}

// What errors of ours say has its lines where they are meant; a path in an error of the standard
// library is all that may bring further ones.
std::vector<std::string> problems_of(const std::exception& error) {
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr)
    return {error.what()};
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  if (of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again)
    return {"a thread cannot be started: " + cause_of(EAGAIN)};
  return lines_of(without_trace(cause_of(error)));
}

// A command line that cannot be read may be that of one process alone, so each says what is wrong
// with its own.
int complain_of_flags(const std::vector<std::string>& problems) {
  return complain(problems, 2, place_in_launch());
}

std::vector<std::string> names_of(const CLI::App& app, bool flags) {
  std::vector<std::string> names;
  if (flags) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(command->get_name());
  }
  return names;
}

// The innermost subcommand that was named on the command line.
const CLI::App* innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  return app;
}

// "piper bench alltoall": the words that lead to a subcommand, the program's own first.
std::string command_words(const CLI::App& app, const Program& program) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? program.name : command_words(*parent, program) + " " + app.get_name();
}

// What is asked for with words elsewhere: "help", "plan help", "version".
std::string flag_for(const std::string& word, const CLI::App& app, const Program& program) {
  const bool asks_version = word == "version" && app.get_parent() == nullptr;
  if (word != "help" && !asks_version) return "";
  return fmt::format("; did you mean '{} --{}'?", command_words(app, program), word);
}

// CLI11 names the first only.
std::string missing_flags(const CLI::App& app) {
  std::vector<std::string> missing;
  for (const CLI::Option* option : app.get_options())
    if (option->get_required() && option->count() == 0) missing.push_back(option->get_name());
  if (missing.size() < 2) return "";
  const std::string last = missing.back();
  missing.pop_back();
  return fmt::format("{} and {} are required", fmt::join(missing, ", "), last);
}

// CLI11 knows that an argument was not expected; what was meant is ours to guess.
std::vector<std::string> unexpected_arguments(const CLI::App& root, const Program& program) {
  const CLI::App* app = innermost(&root);
  std::vector<std::string> lines;
  for (const std::string& argument : root.remaining(true)) {
    const bool flag = argument.starts_with("-");
    const std::string word = argument.substr(0, argument.find('='));
    const bool command =
        !flag && !app->get_subcommands([](const CLI::App*) { return true; }).empty();
    const std::string suggestion = flag_for(word, *app, program);
    lines.push_back(fmt::format(
        "unknown {} '{}'{}",
        flag      ? "flag"
        : command ? "command"
                  : "argument",
        word, suggestion.empty() ? did_you_mean(word, names_of(*app, flag)) : suggestion));
    if (app != &root && suggestion.empty())
      lines.back() += fmt::format(" (see {} --help)", command_words(*app, program));
    if (flag || command) break;  // what follows is most likely its value, or its arguments
  }
  return lines;
}

int run_commands(const Program& program, int argc, char** argv) {
  CLI::App app{program.summary};
  app.set_version_flag("--version", program.name + " " PIPER_VERSION);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
  std::map<const CLI::App*, Run> runs;
  for (const Command& command : program.commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    runs[sub] = command.add(Subcommand(sub));
  }
  app.footer(program.footer);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ExtrasError&) {
    return complain_of_flags(unexpected_arguments(app, program));
  } catch (const CLI::RequiredError& error) {
    if (app.get_subcommands().empty()) {
      if (argc <= 1) {
        say("{}", Lines{app.help()});
        return 2;
      }
      std::vector<std::string> rest = unexpected_arguments(app, program);
      if (rest.empty())
        rest.push_back(fmt::format("a command is required; see {} --help", program.name));
      return complain_of_flags(rest);
    }
    // An unknown flag is most likely a misspelt required one: told first.
    std::vector<std::string> problems = unexpected_arguments(app, program);
    const CLI::App& of = *innermost(&app);
    const std::string missing = missing_flags(of);
    problems.push_back(fmt::format("{} (see {} --help)", missing.empty() ? error.what() : missing,
                                   command_words(of, program)));
    return complain_of_flags(problems);
  } catch (const CLI::ParseError& error) {
    return complain_of_flags({error.what()});
  }
  claim_outputs();
  return runs.at(app.get_subcommands().front())();
}

int run_and_complain(const Program& program, int argc, char** argv) {
  try {
    return run_commands(program, argc, argv);
  } catch (const InvalidInput& error) {
    return complain(error.problems(), 2);
  } catch (const std::bad_alloc&) {
    return complain({cause_of(ENOMEM)}, 1);
  } catch (const std::exception& error) {
    // fmt throws when standard output cannot be written; run_program() reports that.
    return is_output_lost() ? 1 : complain(problems_of(error), 1);
  }
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  open_console();
  say_deadly_signals();
  const int code = with_enough_stack([&] { return run_and_complain(program, argc, argv); });
  return check_output() || code != 0 ? code : 1;
}

}  // namespace piper::cli
