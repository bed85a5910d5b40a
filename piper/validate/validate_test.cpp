#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/validate/validate.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

using namespace piper;
using namespace piper::validate;

namespace {

Json sound_row() {
  return parse_json(
      R"({"source": "a paper", "model": "GPT-7B", "params": 6.7e9, "layers": 32, "hidden": 4096,
    "heads": 32, "kv_heads": 32, "ffn": 16384, "vocab": 51200, "seq": 2048, "global_batch": 64,
    "micro_batch": 1, "gpus": 64, "gpu_type": "A100", "tp": 8, "pp": 1, "vpp": 1, "cp": 1, "dp": 8, "zero": 1,
    "recompute": "none", "precision": "bf16", "measured_value": 1.0, "unit": "iteration s", "grade": "A"})",
      "row");
}

PricedRow priced(const Json& row) {
  return price_rows(parse_rows(Json{{"rows", Json::array({row})}}, "f.json")).front();
}

}  // namespace

TEST_CASE("a row with every field is priced without assumptions but for the trainer") {
  const PricedRow p = priced(sound_row());
  CHECK(p.is_priced());
  CHECK(states_every_field(p.row));
  CHECK(p.assumed_fields == std::vector<std::string>{"trainer megatron-core"});
}

TEST_CASE("rates and utilisations are those of the step's FLOPs, counted by hand") {
  // Products: 6 for each weight of 32 layers (4 h^2 + 2 h ffn = 12 h^2) and of the head, per token;
  // causal attention: 12 l h s / 2.
  constexpr double kLayers = 32, kHidden = 4096, kVocabulary = 51200, kTokens = 64. * 2048;
  const double products = kLayers * 12 * kHidden * kHidden + kHidden * kVocabulary;
  const double flops = kTokens * (6 * products + 6 * kLayers * kHidden * 2048);
  Json row = sound_row();
  const double seconds = priced(row).predicted_value;
  const auto in = [&](const char* unit) {
    row["unit"] = unit;
    return doctest::Approx(priced(row).predicted_value).epsilon(1e-12);
  };
  CHECK(flops / (64 * seconds) / 1e12 == in("model TFLOPs/GPU"));
  CHECK(100 * flops / (64 * seconds * 312e12) == in("MFU"));  // bf16 of an A100
  CHECK(kTokens / (64 * seconds) == in("tokens/s/GPU"));
}

TEST_CASE("five runs that Narayanan et al. published are priced within the aims for whole rows") {
  // SC21, table 1 (arXiv 2104.04473): TFLOP/s a GPU, recomputation included. No constant is fitted
  // to one of them. The aims are those of docs/validation.md for rows that state every field.
  struct Published {
    int64_t layers, hidden, heads, tp, pp, vpp, gpus, batch, micro_batch;
    double tflops;
  };
  std::vector<double> errors;
  for (const Published& p : {Published{36, 4096, 32, 4, 1, 1, 128, 512, 16, 142},
                             Published{40, 6144, 48, 8, 1, 1, 256, 1024, 8, 135},
                             Published{60, 10240, 80, 8, 4, 3, 1024, 1792, 2, 140},
                             Published{80, 12288, 96, 8, 8, 2, 1536, 2304, 2, 148},
                             Published{128, 25600, 160, 8, 64, 1, 3072, 3072, 1, 163}}) {
    Json row = sound_row();
    row.update(Json{{"source", "NVIDIA/Megatron-LM images/cases_april2021.png, sc21"},
                    {"layers", p.layers},
                    {"hidden", p.hidden},
                    {"heads", p.heads},
                    {"kv_heads", p.heads},
                    {"ffn", 4 * p.hidden},
                    {"tp", p.tp},
                    {"pp", p.pp},
                    {"vpp", p.vpp},
                    {"dp", p.gpus / (p.tp * p.pp)},
                    {"gpus", p.gpus},
                    {"global_batch", p.batch},
                    {"micro_batch", p.micro_batch},
                    {"zero", 0},
                    {"recompute", "full(uniform)"},
                    {"precision", "fp16"},
                    {"unit", "TFLOPs/GPU (incl. recompute FLOPs, Megatron formula)"},
                    {"measured_value", p.tflops}});
    row.erase("params");
    const PricedRow one = priced(row);
    REQUIRE(one.is_priced());
    CHECK_FALSE(one.calibration_row);
    errors.push_back(std::abs(one.step_error));
  }
  std::ranges::sort(errors);
  CHECK(errors[2] <= 0.07);
  CHECK(std::accumulate(errors.begin(), errors.end(), 0.0) / 5 <= 0.12);
}

TEST_CASE("what a row leaves open is assumed by name") {
  Json row = sound_row();
  row.erase("vocab");
  row.erase("micro_batch");
  const PricedRow p = priced(row);
  CHECK(p.is_priced());
  CHECK_FALSE(states_every_field(p.row));
  CHECK(std::ranges::count(p.assumed_fields, "vocab 51200") == 1);
  CHECK(std::ranges::count(p.assumed_fields, "micro_batch 1") == 1);
}

TEST_CASE("a row is given up for a missing field or an unknown device, never silently") {
  Json row = sound_row();
  row.erase("layers");
  CHECK(priced(row).not_priced_because ==
        "'layers' is not stated, and no model called 'GPT-7B' is known");
  row = sound_row();
  row["gpu_type"] = "MI325X";
  CHECK(priced(row).not_priced_because == "no facts for the device 'MI325X'");
  row = sound_row();
  row["unit"] = "furlongs";
  CHECK(priced(row).not_priced_because == "the unit 'furlongs' is not known");
  row = sound_row();
  row["gpus"] = 60;
  CHECK(priced(row).not_priced_because == "60 devices are no multiple of tp x pp x cp = 8");
}

TEST_CASE("texts that no rule understands and figures of nothing are not priced as the usual") {
  const auto why_with = [](const char* field, const Json& value) {
    Json row = sound_row();
    row[field] = value;
    return priced(row).not_priced_because;
  };
  CHECK(why_with("precision", "int4") ==
        "'precision' is 'int4'; allowed: a text with bf16, fp16, fp8, mxfp8 or nvfp4 in it");
  CHECK(why_with("recompute", "sometimes") ==
        "'recompute' is 'sometimes'; allowed: a text that begins with none, full or selective, or "
        "names SAC");
  CHECK(why_with("measured_value", 0) == "'measured_value' is '0'; allowed: a positive number");
  for (const char* precision :
       {"BF16", "bf16, fp32 grad accum", "FP8-CS (FP8-MX)", "fp16", "NVFP4"})
    CHECK(why_with("precision", precision).empty());
  for (const char* recompute : {"none (a note)", "full AC", "selective(attn)", "per-op SAC", "no"})
    CHECK(why_with("recompute", recompute).empty());
}

TEST_CASE("a family is one row of the table, however its name is written") {
  const auto families = [](const std::vector<std::string>& names) {
    Json rows = Json::array();
    for (const std::string& name : names) {
      rows.push_back(sound_row());
      rows.back()["model"] = name;
    }
    const Summary s = summarise(price_rows(parse_rows(Json{{"rows", rows}}, "f.json")));
    std::vector<std::string> found;
    for (const auto& [family, errors] : s.groups.at("family"))
      found.push_back(family + " " + std::to_string(errors.count));
    return found;
  };
  using List = std::vector<std::string>;
  CHECK(families({"LLAMA3_70B", "Llama-3-8B", "llama3-70b (12 layers)", "Llama 3 7B"}) ==
        List{"llama3 4"});
  CHECK(families({"LLAMA3.1_405B", "Llama 3.1 70B"}) == List{"llama3.1 2"});
  CHECK(families({"MCore-GPT-32B", "Megatron-GPT-18.4B", "GPT-3.6B"}) == List{"gpt 3"});
  CHECK(families({"megatron-1T", "turing-530B"}) == List{"megatron 1", "turing 1"});
}

TEST_CASE("values of the wrong kind are problems of the file, all at once") {
  Json row = sound_row();
  row["layers"] = -3;
  row["hidden"] = "many";
  try {
    parse_rows(Json{{"rows", Json::array({row})}}, "f.json");
    FAIL("accepted");
  } catch (const InvalidInput& e) {
    CHECK(e.problems() ==
          std::vector<std::string>{
              "f.json: 'rows[0].layers' is -3; allowed: an integer from 0 to 1000000000",
              "f.json: 'rows[0].hidden' is \"many\"; allowed: an integer from 0 to 1000000000"});
  }
  CHECK_THROWS_AS(parse_rows(Json{{"runs", 1}}, "f.json"), InvalidInput);
}

TEST_CASE("the same run in another unit has the same error") {
  Json row = sound_row();
  const PricedRow seconds = priced(row);
  row["unit"] = "iteration ms";
  row["measured_value"] = 1000.0;
  CHECK(priced(row).relative_error == doctest::Approx(seconds.relative_error));
  row["unit"] = "tokens/s/GPU";
  row["measured_value"] = 2048.0;  // 64 x 2048 tokens, 64 devices, 1 s
  CHECK(priced(row).relative_error == doctest::Approx(1 / (1 + seconds.relative_error) - 1));
  CHECK(priced(row).step_error == doctest::Approx(seconds.step_error));
}

TEST_CASE("errors: median, mean and worst of absolute values") {
  PricedRow a, b, c;
  a.step_error = -0.1;
  b.step_error = 0.3;
  c.step_error = 0.02;
  const Errors e = errors_of({&a, &b, &c});
  CHECK(e.median == doctest::Approx(0.1));
  CHECK(e.mean == doctest::Approx(0.14));
  CHECK(e.worst == doctest::Approx(0.3));
}

TEST_CASE(
    "published runs that come with Piper: all priced, those whose fields are assumed within 20 % "
    "in "
    "the mean, a known sweep too") {
  const std::vector<PricedRow> rows = price_rows(builtin_rows());
  CHECK(rows.size() == 322);
  std::vector<PricedRow> sweep;
  for (const PricedRow& row : rows) {
    CHECK_MESSAGE(row.is_priced(), row.row.source, ": ", row.not_priced_because);
    if (row.row.source.starts_with("VIA-Research/vTrain")) sweep.push_back(row);
  }
  // 20 % is what rows with assumed fields are aimed at; tests/golden/validation.txt has the
  // figures.
  const Errors errors = summarise(sweep).time_assumed;
  CHECK(errors.count == 52);
  CHECK(errors.mean < 0.2);
  CHECK(summarise(rows).time_assumed.mean < 0.2);
}
