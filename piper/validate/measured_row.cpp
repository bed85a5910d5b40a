#include <embedded/measured_runs.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/validate/measured_row.h>

#include <cmath>

namespace piper::validate {
namespace {

constexpr double kMost = 1e16;

class RowReader {
 public:
  RowReader(const Json& json, std::string path, Problems* problems)
      : json_(json), path_(std::move(path)), problems_(problems) {}

  std::string text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get<std::string>();
    if (value->is_number_integer()) return std::to_string(value->get<int64_t>());
    problem(key, *value, "text");
    return "";
  }
  std::optional<double> number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) {
      const auto number = value->get<double>();
      if (std::isfinite(number) && number >= 0 && number <= kMost) return number;
    }
    problem(key, *value, "a number from 0 to 1e16");
    return std::nullopt;
  }
  std::optional<int64_t> count(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) {
      const auto number = value->get<double>();
      if (number >= 0 && number <= 1e9 && number == std::floor(number))
        return static_cast<int64_t>(number);
    }
    problem(key, *value, "an integer from 0 to 1000000000");
    return std::nullopt;
  }

 private:
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  void problem(const char* key, const Json& value, const char* allowed) const {
    problems_->add(path_ + "." + key, fmt::format("is {}; allowed: {}", quote(value), allowed));
  }
  const Json& json_;
  std::string path_;
  Problems* problems_;
};

MeasuredRow read_row(const Json& json, const std::string& path, Problems* problems) {
  const RowReader r(json, path, problems);
  MeasuredRow row{.source = r.text("source"),
                  .model = r.text("model"),
                  .gpu_type = r.text("gpu_type"),
                  .zero = r.text("zero"),
                  .recompute = r.text("recompute"),
                  .precision = r.text("precision"),
                  .unit = r.text("unit"),
                  .grade = r.text("grade"),
                  .note = r.text("note"),
                  .layers = r.count("layers"),
                  .hidden = r.count("hidden"),
                  .heads = r.count("heads"),
                  .kv_heads = r.count("kv_heads"),
                  .ffn = r.count("ffn"),
                  .experts = r.count("experts"),
                  .top_k = r.count("topk"),
                  .moe_ffn = r.count("moe_ffn"),
                  .shared_experts = r.count("shared_experts"),
                  .vocabulary = r.count("vocab"),
                  .sequence = r.count("seq"),
                  .global_batch = r.count("global_batch"),
                  .micro_batch = r.count("micro_batch"),
                  .gpus = r.count("gpus"),
                  .tp = r.count("tp"),
                  .pp = r.count("pp"),
                  .vpp = r.count("vpp"),
                  .ep = r.count("ep"),
                  .etp = r.count("etp"),
                  .cp = r.count("cp"),
                  .dp = r.count("dp"),
                  .parameters = r.number("params"),
                  .measured_value = r.number("measured_value"),
                  .outcome = r.text("outcome"),
                  .allocated_gb = r.number("allocated_gb")};
  if (row.is_fit_row() && row.outcome != "ran" && row.outcome != "oom")
    problems->add(path + ".outcome", fmt::format("is '{}'; allowed: ran, oom", row.outcome));
  // A run that ended before anything was measured has no figure; its outcome counts.
  if (row.is_fit_row() && row.allocated_gb == 0) row.allocated_gb.reset();
  // A degree of zero says the same as no degree.
  for (std::optional<int64_t>* degree : {&row.tp, &row.pp, &row.vpp, &row.ep, &row.etp, &row.cp,
                                         &row.dp, &row.experts, &row.micro_batch, &row.gpus})
    if (*degree == 0) degree->reset();
  return row;
}

}  // namespace

std::vector<MeasuredRow> parse_rows(const Json& json, const std::string& source) {
  Problems problems(source);
  const Json* rows = &json;
  if (json.is_object()) {
    const auto found = json.find("rows");
    rows = found == json.end() ? nullptr : &*found;
  }
  if (rows == nullptr || !rows->is_array()) {
    problems.add("rows", "is missing; allowed: an array of measured runs");
    problems.finish();
    return {};
  }
  std::vector<MeasuredRow> all;
  for (size_t i = 0; i < rows->size(); ++i) {
    const std::string path = fmt::format("rows[{}]", i);
    if ((*rows)[i].is_object())
      all.push_back(read_row((*rows)[i], path, &problems));
    else
      problems.add(path, fmt::format("is {}; allowed: an object", quote((*rows)[i])));
  }
  problems.finish();
  return all;
}

std::vector<MeasuredRow> builtin_rows() {
  const EmbeddedFile& file = embedded::measured_runs().front();
  return parse_rows(parse_json(std::string(file.text), std::string(file.name)),
                    std::string(file.name));
}

}  // namespace piper::validate
