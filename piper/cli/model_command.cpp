// piper model: what a model is and how much it needs.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/read_model.h>
#include <piper/model/count.h>
#include <piper/model/describe.h>
#include <piper/model/import.h>
#include <piper/report/table.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace piper::cli {
namespace {

using model::LayerParameters;
using model::Model;

struct ModelFlags {
  std::string model;
  std::vector<std::string> ignore;
  int64_t sequence = 4096;
  std::string precision = "bf16";
  bool list = false;
  bool json = false;
};

// Bytes a parameter. bf16: weight and gradient in bf16, Adam's master weight and two moments in
// fp32 (Piper eq. 2); fp32: no master copy.
struct StateBytes {
  int64_t weight = 2, gradient = 2, optimizer = 12;
};

StateBytes state_bytes(const std::string& precision) {
  return precision == "fp32" ? StateBytes{4, 4, 8} : StateBytes{};
}

using Component = std::pair<const char*, int64_t>;

std::vector<Component> components(const LayerParameters& layer) {
  return {{"attention", layer.attention},
          {"router", layer.router},
          {"routed_experts", layer.routed_experts},
          {"shared_experts", layer.shared_experts},
          {"dense_mlp", layer.dense_mlp},
          {"norms", layer.norms},
          {"inputs", layer.inputs}};
}

std::vector<Component> components(const model::Parameters& parameters) {
  std::vector<Component> all = components(parameters.sum());
  all.insert(all.begin(), {"embedding", parameters.embedding});
  all.emplace_back("final_norm", parameters.final_norm);
  all.emplace_back("head", parameters.head);
  return all;
}

Json to_json(const std::vector<Component>& parts) {
  Json json = Json::object();
  for (const auto& [name, count] : parts) json[name] = count;
  return json;
}

Json flops_json(const model::TokenFlops& flops, int64_t sequence) {
  return {{"sequence", sequence},
          {"forward", flops.forward()},
          {"backward", flops.backward()},
          {"forward_by_component",
           {{"attention_projections", flops.attention_projections},
            {"attention_scores", flops.attention_scores},
            {"router", flops.router},
            {"routed_experts", flops.routed_experts},
            {"shared_experts", flops.shared_experts},
            {"dense_mlp", flops.dense_mlp},
            {"inputs", flops.inputs},
            {"head", flops.head}}}};
}

Json towers_json(const Model& model) {
  Json towers = Json::array();
  for (const model::Tower& tower : model.towers)
    towers.push_back({{"name", tower.name},
                      {"parameters", tower.parameters ? Json(*tower.parameters) : Json()}});
  return towers;
}

Json model_json(const Model& model, const ModelFlags& flags) {
  const model::Parameters parameters = model::count_parameters(model);
  Json by_layer = Json::array();
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    Json layer = {{"layer", i}, {"total", parameters.layers[i].total()}};
    layer.update(to_json(components(parameters.layers[i])));
    by_layer.push_back(std::move(layer));
  }
  const StateBytes bytes = state_bytes(flags.precision);
  const int64_t total = parameters.total();
  Json json;
  json["name"] = model.name;
  json["family"] = model.family;
  json["source"] = model.source;
  json["num_layers"] = model.num_layers();
  json["num_moe_layers"] = model.num_moe_layers();
  json["hidden"] = model.hidden;
  json["vocabulary"] = model.vocabulary;
  json["num_experts"] = model.num_experts();
  json["top_k"] = model.top_k();
  json["parameters"] = {{"total", total},
                        {"active", model::active_parameters(model)},
                        {"active_without_embedding", model::active_parameters(model, false)},
                        {"next_token_layers", parameters.next_token_layers},
                        {"by_component", to_json(components(parameters))},
                        {"by_layer", std::move(by_layer)}};
  json["flops_per_token"] = flops_json(model::token_flops(model, flags.sequence), flags.sequence);
  json["bytes"] = {{"precision", flags.precision},
                   {"weights", total * bytes.weight},
                   {"gradients", total * bytes.gradient},
                   {"optimizer", total * bytes.optimizer}};
  json["auxiliary_loss"] = {{"coefficient", model.router_aux_coefficient},
                            {"loss", traits(model.balancing_loss).name},
                            {"coefficient_of_layer", model.layer_aux_coefficient()}};
  json["towers"] = towers_json(model);
  json["ignored_keys"] = model.ignored_keys;
  json["ignored_on_request"] = model.ignored_on_request;
  json["assumptions"] = model.assumptions;
  return json;
}

std::string share(int64_t part, int64_t whole) {
  return format_percent(static_cast<double>(part) /
                        static_cast<double>(std::max<int64_t>(1, whole)));
}

std::string short_count(int64_t count) { return format_count(static_cast<double>(count)); }

void print_components(const model::Parameters& parameters) {
  report::Table table;
  table.columns = {{"parameters"},
                   {"", report::Align::kRight},
                   {"", report::Align::kRight},
                   {"share", report::Align::kRight}};
  for (const auto& [name, count] : components(parameters))
    if (count > 0)
      table.rows.push_back(
          {name, fmt::format("{}", count), short_count(count), share(count, parameters.total())});
  say("{}\n", Lines{report::to_text(table)});
}

// Equal layers are one row.
void print_layers(const Model& model, const model::Parameters& parameters) {
  report::Table table;
  table.columns = {{"layers", report::Align::kLeft, 24},
                   {"", report::Align::kRight},
                   {"attention"},
                   {"feed-forward"},
                   {"each", report::Align::kRight}};
  for (const model::LayerKind& kind : model::layer_kinds(model)) {
    const size_t first = kind.layers.front();
    table.rows.push_back({kind.range(), fmt::format("x{}", kind.layers.size()),
                          model::describe(model.layers[first].attention),
                          model::describe(model.layers[first].feed_forward),
                          short_count(parameters.layers[first].total())});
  }
  say("{}\n", Lines{report::to_text(table)});
}

void print_auxiliary_loss(const Model& model) {
  if (model.num_moe_layers() == 0 || model.router_aux_coefficient == 0) return;
  const bool is_of_layer = model.balancing_loss == model::BalancingLoss::kEachLayer;
  say("auxiliary loss: coefficient {} of {}{}\n", model.router_aux_coefficient,
      traits(model.balancing_loss).description,
      is_of_layer ? ""
                  : fmt::format("; {:.4g} of {}", model.layer_aux_coefficient(),
                                traits(model::BalancingLoss::kEachLayer).description));
}

void print_notes(const Model& model) {
  for (const std::string& line : first_of(model.assumptions, "assumptions"))
    say("assumed: {}\n", line);
  for (const model::Tower& tower : model.towers)
    say("{}: an encoder beside the language model{}\n", tower.name,
        tower.parameters ? fmt::format(" of {} parameters ({}), not part of the total",
                                       *tower.parameters, short_count(*tower.parameters))
                         : ", left out: its parameters are not counted");
  for (const std::string& key : first_of(model.ignored_keys, "keys")) say("ignored key: {}\n", key);
  for (const std::string& line : model.ignored_on_request) say("ignored as asked: {}\n", line);
  if (!model.source.empty()) say("source: {}\n", model.source);
}

void print_model(const Model& model, const ModelFlags& flags) {
  const model::Parameters parameters = model::count_parameters(model);
  const int64_t total = parameters.total();
  say("{}{}: {} layers, hidden {}, vocabulary {}{}\n", model.name,
      model.family.empty() ? "" : " (" + model.family + ")", model.num_layers(), model.hidden,
      model.vocabulary, model.tied_embeddings ? ", tied embeddings" : "");
  say("{} parameters ({}), {} active a token ({} without the embedding)\n\n", total,
      short_count(total), short_count(model::active_parameters(model)),
      short_count(model::active_parameters(model, false)));
  print_components(parameters);
  print_layers(model, parameters);
  if (parameters.next_token_layers > 0)
    say("{} next-token layer{} of {} more, not part of the total\n", model.num_next_token_layers,
        model.num_next_token_layers == 1 ? "" : "s", short_count(parameters.next_token_layers));
  const model::TokenFlops flops = model::token_flops(model, flags.sequence);
  say("FLOPs a token at sequence {}: forward {}, backward {}\n", flags.sequence,
      format_count(flops.forward()), format_count(flops.backward()));
  const StateBytes bytes = state_bytes(flags.precision);
  const auto size = [&](int64_t each) {
    return format_bytes(static_cast<double>(total) * static_cast<double>(each));
  };
  say("{}: weights {}, gradients {}, optimizer (Adam) {}\n", flags.precision, size(bytes.weight),
      size(bytes.gradient), size(bytes.optimizer));
  print_auxiliary_loss(model);
  print_notes(model);
}

int print_list(const ModelFlags& flags) {
  Json list = Json::array();
  report::Table table;
  table.columns = {{"model"},
                   {"total", report::Align::kRight},
                   {"active", report::Align::kRight},
                   {"layers", report::Align::kRight},
                   {"experts", report::Align::kRight},
                   {"top-k", report::Align::kRight}};
  for (const std::string& name : model::builtin_models()) {
    const Model model = model::load_model(name);
    const int64_t total = model::count_parameters(model).total(),
                  active = model::active_parameters(model);
    list.push_back({{"name", name}, {"total", total}, {"active", active}});
    table.rows.push_back(
        {name, short_count(total), short_count(active), fmt::format("{}", model.num_layers()),
         fmt::format("{}", model.num_experts()), fmt::format("{}", model.top_k())});
  }
  if (flags.json)
    say_json(Json{{"models", std::move(list)}});
  else
    say("{}", Lines{report::to_text(table)});
  return 0;
}

int run_model(const ModelFlags& flags) {
  if (flags.list) return print_list(flags);
  if (flags.model.empty())
    throw InvalidInput("which model? name a config.json or a built-in (piper model --list)");
  const Model model = model::load_model(flags.model, flags.ignore);
  if (flags.json)
    say_json(model_json(model, flags));
  else
    print_model(model, flags);
  return 0;
}

}  // namespace

Run add_model(Subcommand command) {
  auto flags = std::make_shared<ModelFlags>();
  command.add_option("model", flags->model,
                     "A config.json, a folder holding one, or a built-in name");
  add_ignore_flag(command, flags->ignore);
  command.add_flag("--list", flags->list, "List the built-in models");
  command
      .add_option("--sequence", flags->sequence,
                  "Sequence length in tokens, for the FLOPs; 128K is 131072")
      .takes_suffixes()
      .show_default()
      .check(integer_in(1, int64_t{1} << 32));
  command.add_option("--precision", flags->precision, "Of weights and gradients")
      .show_default()
      .check(one_of({"bf16", "fp32"}));
  command.add_flag("--json", flags->json, "Print JSON");
  return [flags] { return run_model(*flags); };
}

}  // namespace piper::cli
