// piper trainer: the trainers that a plan can be priced for, what each overlaps, launches and
// keeps, and how far off its prices were on published runs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/subcommand.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/report/table.h>

#include <memory>

namespace piper::cli {
namespace {

using cost::TrainerProfile;

struct TrainerFlags {
  std::string name;
  bool list = false, json = false;
};

std::string joined(const std::vector<std::string>& words, const char* otherwise) {
  return words.empty() ? otherwise : fmt::format("{}", fmt::join(words, ", "));
}

std::string overlaps_of(const TrainerProfile& t) {
  std::vector<std::string> words;
  for (const auto& [what, part] : {std::pair{"gradients and gathers", t.hidden_gradients},
                                   {"messages", t.hidden_messages},
                                   {"tensor collectives", t.hidden_tensor},
                                   {"exchanges", t.hidden_exchange}})
    if (part > 0) words.push_back(fmt::format("{} {:.0f} %", what, 100 * part));
  return joined(words, "nothing");
}

std::string launches_of(const TrainerProfile& t) {
  std::vector<std::string> words;
  if (t.host_seconds_per_layer > 0)
    words.push_back(format_seconds(t.host_seconds_per_layer) + " a layer");
  if (t.host_seconds_per_mixture_layer > 0)
    words.push_back(format_seconds(t.host_seconds_per_mixture_layer) + " a mixture layer");
  if (t.serial_seconds_per_layer > 0)
    words.push_back(format_seconds(t.serial_seconds_per_layer) + " a layer beside the kernels");
  return joined(words, "not priced");
}

std::string keeps_of(const TrainerProfile& t) {
  return fmt::format("{} + {} B a parameter (ZeRO 1), {} fixed", t.state[1].replicated,
                     t.state[1].sharded, format_bytes(t.fixed_bytes));
}

std::string error_of(const TrainerProfile& t) {
  if (t.published.rows == 0) return "no published runs";
  return fmt::format("{} in the median of {} runs{}", format_percent(t.published.median_error),
                     t.published.rows,
                     t.published.of.empty() ? "" : " that " + t.published.of + " stands for");
}

Json to_json(const TrainerProfile& t) {
  Json json{{"name", t.name},
            {"description", t.description},
            {"use", t.use},
            {"overlaps",
             {{"gradients", t.hidden_gradients},
              {"messages", t.hidden_messages},
              {"tensor", t.hidden_tensor},
              {"exchange", t.hidden_exchange}}},
            {"host_seconds_per_layer", t.host_seconds_per_layer},
            {"host_seconds_per_mixture_layer", t.host_seconds_per_mixture_layer},
            {"fixed_bytes", t.fixed_bytes}};
  if (t.published.rows > 0)
    json["published"] = {{"rows", t.published.rows},
                         {"median_error", t.published.median_error},
                         {"of", t.published.of.empty() ? t.name : t.published.of}};
  return json;
}

void print_list(const std::vector<TrainerProfile>& trainers) {
  report::Table table;
  table.columns = {{"trainer"}, {"overlaps"}, {"launches"}, {"off by"}, {"take it for"}};
  for (const TrainerProfile& t : trainers)
    table.rows.push_back({t.name, overlaps_of(t), launches_of(t), error_of(t), t.use});
  table.max_width = report::console_width();
  say("{}", Lines{report::to_text(table)});
}

void print_one(const TrainerProfile& t) {
  say("{}: {}\n", t.name, t.description);
  for (const auto& [what, text] : {std::pair<const char*, std::string>{"take it for", t.use},
                                   {"overlaps", overlaps_of(t)},
                                   {"launches", launches_of(t)},
                                   {"keeps", keeps_of(t)},
                                   {"off by", error_of(t)}})
    if (!text.empty()) say("{}: {}\n", what, text);
  for (const auto& [device, calibration] : t.calibrations)
    say("compute on {}: {} of the micro-benchmarks' rate, {}\n", device,
        format_percent(calibration.compute_efficiency), calibration.source);
  say("compute elsewhere: {} of it, {}\n", format_percent(t.calibration.compute_efficiency),
      t.calibration.source);
}

int run_trainer(const TrainerFlags& flags) {
  if (flags.list == !flags.name.empty())
    throw InvalidInput(flags.list ? "--list beside a name; allowed: one of them"
                                  : "a trainer's name or file is missing; --list shows all");
  std::vector<TrainerProfile> trainers;
  if (flags.list)
    for (const std::string& name : cost::builtin_trainers())
      trainers.push_back(cost::load_trainer(name));
  else
    trainers.push_back(cost::load_trainer(flags.name));
  if (flags.json) {
    Json json = Json::array();
    for (const TrainerProfile& t : trainers) json.push_back(to_json(t));
    say_json((flags.list ? json : json.front()));
  } else if (flags.list) {
    print_list(trainers);
  } else {
    print_one(trainers.front());
  }
  return 0;
}

}  // namespace

Run add_trainer(Subcommand command) {
  auto flags = std::make_shared<TrainerFlags>();
  command.add_option("trainer", flags->name, "a name of configs/trainers or a file")
      .type_name("NAME");
  command.add_flag("--list", flags->list, "all built-in trainers");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_trainer(*flags); };
}

}  // namespace piper::cli
