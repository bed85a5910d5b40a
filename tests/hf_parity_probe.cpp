// The C++ side of hf_parity.py: loads weights, computes the logits of the tokens and every gradient
// of the mean token loss, and writes them.
//
//   hf_parity_probe DIR [DEVICE [fp32 | bf16]]
//
// DEVICE: cpu, stand-in (tests/stand_in/device.h), or libtorch's name.
//
// DIR holds config.json (Hugging Face's), index.json and raw little-endian files:
//   {"sequences": B, "sequence": S, "mtp_depth": k, "mtp_weight": w,
//    "tensors": [{"name": ..., "shape": [...], "file": ...}, ...], "auxiliary": {...}}
// tokens.bin and targets.bin: int64 [B, S]; tensors: fp32. Written, in fp32: logits.bin [B * S, V],
// for each tensor `file` + ".gradient", and auxiliary.bin [1], the auxiliary loss, which is
// computed, with the coefficient of config.json, where index.json has an "auxiliary".
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/import.h>
#include <testing/nn/whole_step.h>
#include <tests/stand_in/device.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace piper {
namespace {

using Path = std::filesystem::path;

at::Tensor read(const Path& path, std::vector<int64_t> shape, at::ScalarType dtype) {
  at::Tensor t = at::empty(shape, dtype);
  std::ifstream in(path, std::ios::binary);
  in.read(static_cast<char*>(t.data_ptr()), static_cast<std::streamsize>(t.nbytes()));
  if (!in || in.peek() != EOF) throw IoError(path.string() + ": not the bytes of its shape");
  return t;
}

void write(const Path& path, const at::Tensor& t) {
  const at::Tensor whole = t.to(at::kCPU, at::kFloat).contiguous();
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char*>(whole.data_ptr()),
            static_cast<std::streamsize>(whole.nbytes()));
  if (!out) throw IoError(path.string() + ": cannot write");
}

struct Way {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};

struct Case {
  model::Model model;
  nn::testing::Batch batch;
  double mtp_weight = 0;
  std::map<std::string, std::string> file_of;  // by tensor name
};

Case load(const Path& dir, nn::NamedTensors& weights) {
  const Json index = read_json_file(dir / "index.json");
  Case c{.model = model::with_mtp(model::load_model((dir / "config.json").string()),
                                  index.at("mtp_depth").get<int64_t>()),
         .mtp_weight = index.at("mtp_weight")};
  if (!index.contains("auxiliary")) c.model.router_aux_coefficient = 0;
  const int64_t sequences = index.at("sequences"), sequence = index.at("sequence");
  c.batch.tokens_BS = read(dir / "tokens.bin", {sequences, sequence}, at::kLong);
  c.batch.targets_T = read(dir / "targets.bin", {sequences * sequence}, at::kLong);
  for (const Json& tensor : index.at("tensors")) {
    const std::string name = tensor.at("name"), file = tensor.at("file");
    weights[name] = read(dir / file, tensor.at("shape").get<std::vector<int64_t>>(), at::kFloat);
    c.file_of[name] = file;
  }
  return c;
}

std::unique_ptr<nn::Stage> stage_of(const Case& c, nn::NamedTensors weights, const Way& way) {
  strategy::Strategy strategy =
      nn::testing::tiny_strategy(c.model, 1, 1, c.batch.tokens_BS.size(1));
  if (way.dtype == at::kBFloat16) strategy.precision = strategy::Precision::kBf16;
  auto stage =
      nn::make_stage(c.model, strategy, Rank(0),
                     {.dtype = way.dtype,
                      .device = way.device,
                      .global_sequences = c.batch.tokens_BS.size(0),
                      .global_target_tokens = nn::testing::num_targets(c.batch),
                      .mtp_weight = c.mtp_weight,
                      .mtp_target_tokens = nn::testing::num_mtp_targets(c.model, c.batch)});
  for (nn::NamedPiece& piece : stage->named_pieces()) {
    const auto found = weights.find(piece.name);
    if (found == weights.end()) throw InvalidInput(piece.name + ": not among the saved tensors");
    piece.value.copy_(found->second);
    weights.erase(found);
  }
  if (!weights.empty())
    throw InvalidInput(weights.begin()->first + ": saved, but no part of the model");
  return stage;
}

at::Tensor logits(const Case& c, nn::Stage& stage) {
  const int64_t sequence = c.batch.tokens_BS.size(1);
  at::Tensor x = stage.embedding_forward(c.batch.tokens_BS);
  for (int32_t layer = 0; layer < c.model.num_layers(); ++layer) {
    const at::Tensor x1 = stage.attention_forward(layer, x, sequence, nullptr);
    if (!c.model.layers[static_cast<size_t>(layer)].feed_forward.is_moe()) {
      x = stage.dense_mlp_forward(layer, x1, nullptr);
      continue;
    }
    nn::Routing routing;
    const at::Tensor rows = stage.gate_forward(layer, x1, sequence, routing, nullptr);
    const at::Tensor residual = c.model.layers[static_cast<size_t>(layer)].feed_forward.has_shared()
                                    ? stage.shared_forward(layer, x1, nullptr)
                                    : x1;
    x = stage.merge_forward(layer, stage.experts_forward(layer, rows, routing, nullptr), routing,
                            residual);
  }
  return stage.logits(x);
}

Way way_of(int argc, char** argv) {
  const std::string device = argc > 2 ? argv[2] : "cpu";
  Way way;
  if (argc > 3 && std::string(argv[3]) == "bf16") way.dtype = at::kBFloat16;
  if (device == "stand-in") {
    way.device = testing::stand_in::device();
    testing::stand_in::begin(testing::stand_in::Mode::kSynchronous);
  } else {
    way.device = at::Device(device);
  }
  return way;
}

int probe(const Path& dir, const Way& way) {
  at::set_num_threads(1);
  nn::NamedTensors weights;
  Case c = load(dir, weights);
  const auto stage = stage_of(c, std::move(weights), way);
  c.batch.tokens_BS = c.batch.tokens_BS.to(way.device);
  c.batch.targets_T = c.batch.targets_T.to(way.device);
  write(dir / "logits.bin", logits(c, *stage));
  stage->zero_gradients();
  nn::testing::run_step(c.model, {stage.get()}, {c.batch});
  write(dir / "auxiliary.bin", at::full({1}, stage->take_statistics().auxiliary_loss));
  for (const nn::NamedPiece& piece : stage->named_pieces())
    write(dir / (c.file_of.at(piece.name) + ".gradient"), piece.gradient);
  return 0;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) return 2;
  try {
    return piper::probe(argv[1], piper::way_of(argc, argv));
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
    return 2;
  }
}
