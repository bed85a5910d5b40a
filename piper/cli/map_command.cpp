// piper map: the best strategy of every model on every number of devices of one machine.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/plan_answer.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/files/output.h>
#include <piper/model/import.h>
#include <piper/plan/ranking.h>
#include <piper/report/progress.h>
#include <piper/report/strategy_map.h>
#include <piper/report/table.h>

#include <memory>
#include <set>
#include <string>

namespace piper::cli {
namespace {

struct MapFlags {
  std::vector<std::string> models, ignore;
  std::vector<int64_t> devices;
  std::string cluster, precision, trainer, load, out;
  int64_t sequence = 0, batch_per_device = 0, threads = 0;
  bool json = false;
};

// One search: what the map shows of it, and its JSON.
struct MapAnswer {
  report::MapCell cell;
  Json json;
};

std::string short_mesh(const strategy::Mesh& m) {
  std::string text = fmt::format("pp {}{}", m.pp, m.vpp > 1 ? fmt::format("x{}", m.vpp) : "");
  const auto add = [&](const char* axis, int64_t degree) {
    if (degree > 1) text += fmt::format(", {} {}", axis, degree);
  };
  add("tp", m.tp);
  add("cp", m.cp);
  add("ep", m.ep);
  add("etp", m.etp);
  return text + fmt::format(", dp {}", m.dp);
}

std::string lacking(const plan::Request& r, const plan::Plan& plan) {
  const plan::Candidate* nearest = nearest_of(plan);
  if (nearest == nullptr) return "nothing fits";
  return fmt::format("nothing fits: {} of {} a device with {}",
                     format_bytes(nearest->estimate.peak_bytes), format_bytes(r.memory_limit_bytes),
                     plan::describe(nearest->strategy));
}

MapAnswer answer(const plan::Request& request) {
  MapAnswer a{.json = {{"num_devices", request.num_devices},
                       {"sequence", request.sequence},
                       {"global_batch_sequences", request.global_batch_sequences}}};
  plan::Plan plan;
  try {
    plan = plan::search(request);
    plan::rank(request, plan);
  } catch (
      const InvalidInput& error) {  // of this model on so many devices: the others still answer
    a.cell.why_not = fmt::format("nothing divides: {}", fmt::join(error.problems(), "; "));
    a.json["why_not"] = a.cell.why_not;
    return a;
  }
  a.json["num_priced"] = plan.num_priced;
  if (plan.ranked.empty()) {
    a.cell.why_not = lacking(request, plan);
    a.json["why_not"] = a.cell.why_not;
    return a;
  }
  const plan::Candidate& best = plan.ranked.front();
  a.cell = {.mfu = cost::mfu(*request.model, best.strategy, *request.cluster, best.step_seconds()),
            .mesh = short_mesh(best.strategy.mesh),
            .detail = plan::describe(best.strategy),
            .step_seconds = best.step_seconds()};
  a.json["mfu"] = *a.cell.mfu;
  a.json["mesh_in_short"] = a.cell.mesh;
  a.json["in_words"] = a.cell.detail;
  a.json["step_seconds"] = a.cell.step_seconds;
  a.json["best"] = priced_json(request, best);
  return a;
}

PlanQuestion question_of(const MapFlags& flags) {
  PlanQuestion q;
  q.asked.cluster = cluster::load_cluster(flags.cluster);
  for (const int64_t devices : flags.devices)
    if (devices > q.asked.cluster.num_devices())
      throw InvalidInput(fmt::format("--devices {}: {} has {}", devices, q.asked.cluster.name,
                                     q.asked.cluster.num_devices()));
  q.asked.sequence = flags.sequence;
  if (!flags.precision.empty())
    q.asked.precision = parse_word<strategy::Precision>("--precision", flags.precision);
  q.trainer = trainer_of(flags.trainer, q.asked.cluster);
  if (!flags.load.empty()) q.asked.load = cost::LoadSamples{.load = cost::parse_load(flags.load)};
  q.top = 1;
  q.asked.num_threads = flags.threads;
  return q;
}

void print_map(const report::StrategyMap& map) {
  report::Table table;
  table.columns = {{map.cluster}};
  for (const int64_t devices : map.devices)
    table.columns.push_back({fmt::format("{} devices", devices)});
  for (const report::StrategyMap::Row& row : map.rows) {
    std::vector<std::string> cells{row.model};
    for (const report::MapCell& c : row.cells)
      cells.push_back(c.mfu ? fmt::format("{}  {}", format_percent(*c.mfu), c.mesh)
                            : "nothing fits");
    table.rows.push_back(std::move(cells));
  }
  table.max_width = report::console_width();
  say("{}", Lines{report::to_text(table)});
  for (const report::StrategyMap::Row& row : map.rows)
    for (size_t i = 0; i < row.cells.size(); ++i)
      if (!row.cells[i].mfu)
        say("{} on {} devices: {}\n", row.model, map.devices[i], row.cells[i].why_not);
}

Json facts_json(const report::StrategyMap& map, const PlanQuestion& q) {
  return {{"cluster", map.cluster}, {"trainer", q.trainer.name}, {"devices", map.devices}};
}

// "4096", or "1024 to 4096" where cells differ.
std::string range(const std::set<int64_t>& values) {
  return values.size() == 1 ? std::to_string(*values.begin())
                            : fmt::format("{} to {}", *values.begin(), *values.rbegin());
}

int run_map(const MapFlags& flags) {
  PlanQuestion q = question_of(flags);
  const cost::TrainerProfile& trainer = q.trainer;
  std::vector<model::Model> models;
  for (const std::string& name : flags.models) models.push_back(read_model(name, flags.ignore));
  report::StrategyMap map{.cluster = q.asked.cluster.name, .devices = flags.devices};
  Json json = facts_json(map, q);
  json["models"] = Json::array();
  report::Progress bar({.label = "map",
                        .total = static_cast<int64_t>(models.size() * flags.devices.size()),
                        .unit = "searches"});
  std::vector<plan::Default> defaults;
  std::set<int64_t> batches, sequences;  // of the questions, as asked or as plan takes them
  std::set<std::string> precisions;
  for (const model::Model& model : models) {
    report::StrategyMap::Row row{.model = model.name};
    Json cells = Json::array();
    q.asked.model = model;
    for (const int64_t devices : flags.devices) {
      bar.note(fmt::format("{} on {}", model.name, devices));
      q.asked.num_devices = devices;
      q.asked.global_batch_sequences = flags.batch_per_device * devices;
      const plan::Request request = plan::resolve_defaults(q.asked, trainer, defaults);
      batches.insert(request.global_batch_sequences);
      sequences.insert(request.sequence);
      precisions.insert(strategy::name(request.precision));
      MapAnswer a = answer(request);
      row.cells.push_back(std::move(a.cell));
      cells.push_back(std::move(a.json));
      bar.advance();
    }
    json["models"].push_back({{"model", model.name}, {"cells", std::move(cells)}});
    map.rows.push_back(std::move(row));
  }
  bar.finish();
  map.facts = {{"devices", q.asked.cluster.device},
               {"trainer", trainer.name},
               {"load", flags.load.empty() ? cost::kDefaultLoad : flags.load},
               {"batch", flags.batch_per_device > 0
                             ? fmt::format("{} sequences a device", flags.batch_per_device)
                             : fmt::format("{} sequences", range(batches))},
               {"sequence", fmt::format("{} tokens", range(sequences))},
               {"precision", fmt::format("{}", fmt::join(precisions, ", "))}};
  if (flags.json)
    say_json(json);
  else
    print_map(map);
  if (flags.out.empty()) return 0;
  files::write_text_file(flags.out, report::render(map));
  if (!flags.json) say("written: {}\n", flags.out);
  return 0;
}

}  // namespace

Run add_map(Subcommand command) {
  auto flags = std::make_shared<MapFlags>();
  command.add_option("--models", flags->models, "names, config.json files or folders, with commas")
      .delimiter(',')
      .required();
  add_ignore_flag(command, flags->ignore);
  command.add_option("--cluster", flags->cluster, "built-in name or file").required();
  command.add_option("--devices", flags->devices, "numbers of devices, with commas")
      .delimiter(',')
      .check(integer_in(1, int64_t{1} << 24))
      .required();
  command.add_option("--sequence", flags->sequence, "tokens of a sequence; 128K is 131072")
      .takes_suffixes()
      .check(integer_in(1, int64_t{1} << 32));
  command
      .add_option("--global-batch-per-device", flags->batch_per_device,
                  "sequences of a step for each device (default: as piper plan)")
      .check(integer_in(1, int64_t{1} << 20));
  command.add_option("--precision", flags->precision, one_of_names<strategy::Precision>());
  add_trainer_flag(command, flags->trainer, " (as piper plan)");
  command.add_option("--load", flags->load, "load of the experts (as piper plan)")
      .type_name("LOAD");
  add_threads_flag(command, flags->threads);
  command.add_output("--out", flags->out, "write the map as one HTML page");
  command.add_flag("--json", flags->json, "print the map as JSON");
  return [flags] { return run_map(*flags); };
}

}  // namespace piper::cli
