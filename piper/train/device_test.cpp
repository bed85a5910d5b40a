// Whole training steps on the tests' own device (tests/stand_in/device.h) and, where there is one,
// on a CUDA device, held to those of the CPU.
#include <ATen/Context.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/comm/launch.h>
#include <piper/comm/network.h>
#include <piper/comm/process_world.h>
#include <piper/executor/clock.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/model/import.h>
#include <piper/nn/device_trials.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/host_read.h>
#include <piper/nn/tensor_ops.h>
#include <piper/profile/calibrate.h>
#include <piper/profile/measure_links.h>
#include <piper/report/run_files.h>
#include <piper/train/run.h>
#include <signal.h>
#include <sys/wait.h>
#include <testing/cost/example_model.h>
#include <testing/train/equivalence_run.h>
#include <tests/stand_in/device.h>
#include <tests/stand_in/fused_attention.h>
#include <tests/switches.h>
#include <tests/test_folder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <tuple>
#include <utility>

namespace piper::train {
namespace {

using namespace testing;
namespace stand_in = piper::testing::stand_in;

// The CPU computes as other devices do, while it lives.
class Compositions {
 public:
  Compositions() { nn::compute_by_compositions(true); }
  ~Compositions() { nn::compute_by_compositions(false); }
  Compositions(const Compositions&) = delete;
  Compositions& operator=(const Compositions&) = delete;
};

struct Case {
  model::Model model;
  strategy::Strategy strategy;
};

Case make_case(const model::Model& model, strategy::Mesh mesh,
               PipelineSchedule schedule = PipelineSchedule::k1F1B,
               Recompute recompute = Recompute::kNone,
               strategy::Precision precision = strategy::Precision::kFp32) {
  Case made{model, strategy_for(model, mesh, schedule, recompute, precision)};
  return made;
}

Trained on_cpu(const Case& of, int64_t steps) {
  const Compositions compositions;
  return run_training(of.model, of.strategy, steps);
}

Trained on(at::Device device, const Case& of, int64_t steps,
           const std::function<void(RankTrainer&, int64_t)>& before_step = {},
           const std::function<void(RunShared&)>& adjust = {}) {
  at::set_num_threads(1);
  return run_training(
      of.model, of.strategy, steps, {}, 0.3, collective::apart(1),
      [&](RunShared& shared) {
        std::vector<Rank> ranks;
        for (int64_t r = 0; r < of.strategy.mesh.world(); ++r) ranks.emplace_back(r);
        shared.devices = {{device}, ranks};
        if (adjust) adjust(shared);
      },
      before_step);
}

Trained on_device(const Case& of, int64_t steps,
                  const std::function<void(RankTrainer&, int64_t)>& before_step = {},
                  const std::function<void(RunShared&)>& adjust = {}) {
  const auto before = [&](RankTrainer& trainer, int64_t number) {
    stand_in::name_thread(trainer.rank().value);
    if (before_step) before_step(trainer, number);
  };
  Trained trained = on(stand_in::device(), of, steps, before, adjust);
  stand_in::finish();
  return trained;
}

std::string exactly(const std::vector<double>& values) {
  return fmt::format("{:.17g}", fmt::join(values, " "));
}

// How far apart two tensors are, relative to the largest element.
double apart(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.to(at::kDouble), b = other.to(at::kDouble);
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// With ZeRO a rank has the sums of its share of gradients alone. One failure says all that differs.
void check_same_bits(const Trained& one, const Trained& other, bool has_all_gradients) {
  REQUIRE(one.values.size() == other.values.size());
  std::string differ;
  for (const auto& [name, value] : one.values) {
    if (!at::equal(value, other.values.at(name)))
      differ += fmt::format(" {} by {:.1e}", name, apart(value, other.values.at(name)));
    if (!has_all_gradients) continue;
    const at::Tensor &g = one.gradients.at(name), &h = other.gradients.at(name);
    if (!at::equal(g, h)) differ += fmt::format(" gradient of {} by {:.1e}", name, apart(g, h));
  }
  if (one.losses != other.losses || one.norms != other.norms || !differ.empty())
    FAIL_CHECK("losses ", exactly(one.losses), " for ", exactly(other.losses), ", norms ",
               exactly(one.norms), " for ", exactly(other.norms), "; differ:", differ);
}

void check_no_races() {
  for (const std::string& race : stand_in::races()) FAIL_CHECK(race);
}

strategy::Mesh mesh_of(int64_t pp, int64_t dp, int64_t ep, int64_t tp = 1) {
  strategy::Mesh mesh;
  mesh.pp = pp, mesh.dp = dp, mesh.ep = ep, mesh.tp = tp;
  return mesh;
}

model::Model with_tied_embeddings() {
  model::Model m = small_model();
  m.name = "small-tied";
  m.tied_embeddings = true;
  m.router_z_coefficient = 1e-3;
  return m;
}

// Whose experts have rows of 16 bytes and more in bf16: their products are one.
model::Model with_grouped_products() {
  model::Model m = small_model();
  m.name = "small-grouped";
  for (model::Layer& layer : m.layers) layer.feed_forward.ffn = 16;
  return m;
}

// What the families have that the other models here have not.
std::vector<Case> further_families() {
  model::Model mixtral = small_model(), olmoe = small_model(), deepseek_v2 = deepseek_like(),
               dense = small_model();
  mixtral.family = mixtral.name = "mixtral";
  olmoe.family = olmoe.name = "olmoe";
  deepseek_v2.family = deepseek_v2.name = "deepseek_v2";
  dense.family = dense.name = "qwen3";
  for (model::Layer& layer : mixtral.layers) layer.attention.qk_norm = model::QkNorm::kNone;
  for (model::Layer& layer : olmoe.layers) {
    layer.attention.qk_norm = model::QkNorm::kFull;
    layer.attention.num_kv_heads = layer.attention.num_heads;
  }
  for (model::Layer& layer : deepseek_v2.layers) {
    layer.attention.latent.query_rank = 0;
    layer.feed_forward.score = model::Score::kSoftmax;
    layer.feed_forward.selection_bias = layer.feed_forward.normalise_top_k = false;
  }
  for (model::Layer& layer : dense.layers) layer.feed_forward = {.ffn = 20};
  return {make_case(mixtral, mesh_of(1, 2, 2)), make_case(olmoe, mesh_of(1, 2, 2)),
          make_case(deepseek_v2, mesh_of(1, 2, 2)), make_case(dense, mesh_of(2, 1, 1))};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kInterleaved, PipelineSchedule::kZbV, PipelineSchedule::kDualPipeV,
        PipelineSchedule::kInterleavedPairs}) {
    strategy::Mesh mesh = mesh_of(2, 1, 1);
    mesh.vpp = 2;
    cases.push_back(make_case(small_model(), mesh, schedule));
  }
  cases.push_back(make_case(with_grouped_products(), mesh_of(1, 2, 2), PipelineSchedule::k1F1B,
                            Recompute::kExperts, strategy::Precision::kBf16));
  cases.push_back(make_case(with_grouped_products(), mesh_of(2, 2, 2), PipelineSchedule::kZbH1,
                            Recompute::kNone, strategy::Precision::kBf16));
  cases.push_back(make_case(with_grouped_products(), mesh_of(1, 2, 2), PipelineSchedule::k1F1B,
                            Recompute::kNone, strategy::Precision::kBf16));
  cases.back().strategy.all_to_all = strategy::AllToAll::kHaloDedup;
  for (const model::Model& model :
       {small_model(), deepseek_like(), qwen2_like(), with_tied_embeddings()}) {
    cases.push_back(make_case(model, mesh_of(1, 1, 1)));
    cases.push_back(make_case(model, mesh_of(2, 2, 2), PipelineSchedule::k1F1B, Recompute::kFull));
  }
  cases.push_back(make_case(small_model(), mesh_of(1, 2, 2), PipelineSchedule::kGPipe,
                            Recompute::kNone, strategy::Precision::kBf16));
  cases.push_back(make_case(small_model(), mesh_of(2, 1, 1), PipelineSchedule::kZbH1));
  cases.push_back(make_case(deepseek_like(), mesh_of(2, 2, 2), PipelineSchedule::k1F1BPairs));
  cases.push_back(make_case(deepseek_like(), mesh_of(1, 2, 1, 2)));
  cases.push_back(make_case(small_model(), mesh_of(1, 2, 2, 2)));
  cases.back().strategy.sequence_parallel = false;
  cases.back().strategy.moe_schedule = strategy::MoeSchedule::kMontaO2;
  cases.back().strategy.moe_chunks = 2;
  cases.push_back(make_case(small_model(), mesh_of(1, 2, 2, 2)));
  cases.back().strategy.mesh.etp = 2;
  cases.back().strategy.sequence_parallel = false;
  cases.back().strategy.moe_schedule = strategy::MoeSchedule::kParmS1;
  for (const model::Model& model : {small_model(), deepseek_like()}) {
    cases.push_back(make_case(model, mesh_of(1, 1, 1)));
    cases.back().strategy.mesh.cp = 2;
  }
  cases.push_back(make_case(small_model(), mesh_of(1, 1, 1), PipelineSchedule::k1F1B,
                            Recompute::kAttention, strategy::Precision::kBf16));
  cases.back().strategy.mesh.cp = 2;
  cases.push_back(make_case(small_model(), mesh_of(1, 4, 2)));
  cases.back().strategy.zero = 1;
  cases.push_back(make_case(small_model(), mesh_of(1, 4, 2), PipelineSchedule::k1F1B,
                            Recompute::kNone, strategy::Precision::kBf16));
  cases.back().strategy.zero = 1;
  cases.back().strategy.expert_compression = 10;
  cases.push_back(make_case(small_model(), mesh_of(2, 4, 2)));
  cases.back().strategy.reduction_start = strategy::ReductionStart::kYielding;
  cases.push_back(make_case(small_model(), mesh_of(2, 2, 1), PipelineSchedule::kZbH1));
  cases.back().strategy.zero = 2;
  cases.push_back(make_case(with_tied_embeddings(), mesh_of(1, 4, 2)));
  cases.back().strategy.zero = 2;
  cases.push_back(make_case(small_model(), mesh_of(1, 4, 2)));
  cases.back().strategy.zero = 1;
  cases.back().strategy.redundant_experts = 2;
  cases.push_back(make_case(deepseek_like(), mesh_of(1, 4, 2)));
  cases.back().strategy.zero = 3;
  cases.push_back(make_case(with_tied_embeddings(), mesh_of(2, 2, 2), PipelineSchedule::kZbH1));
  cases.back().strategy.zero = 3;
  cases.push_back(make_case(small_model(), mesh_of(1, 4, 4)));
  cases.back().strategy.all_to_all = strategy::AllToAll::kHaloDedup;
  cases.push_back(make_case(model::with_mtp(deepseek_like(), 1), mesh_of(2, 1, 1)));
  cases.push_back(make_case(small_model(), mesh_of(1, 2, 2)));
  cases.back().strategy.capacity.factor = 1;
  cases.push_back(make_case(small_model(), mesh_of(2, 2, 2)));
  cases.back().strategy.capacity = {.factor = 1, .pads = true};
  cases.push_back(make_case(with_grouped_products(), mesh_of(2, 1, 1), PipelineSchedule::kZbH1,
                            Recompute::kFull, strategy::Precision::kBf16));
  cases.back().strategy.capacity = {.factor = 0.5, .drop = strategy::Drop::kPosition};
  cases.push_back(make_case(model::with_mtp(small_model(), 1), mesh_of(1, 1, 2, 2)));
  cases.back().strategy.mesh.cp = 2;
  cases.back().strategy.capacity.factor = 1;
  cases.push_back(make_case(deepseek_like(), mesh_of(2, 2, 2), PipelineSchedule::kGPipe));
  cases.back().strategy.offload = strategy::Offload::kOptimizerAndActivations;
  for (Case& of : further_families()) cases.push_back(std::move(of));
  return cases;
}

std::string name_of(const Case& of) {
  const strategy::Mesh& m = of.strategy.mesh;
  return fmt::format("{} pp {} tp {} cp {} dp {} ep {} zero {} {}", of.model.name, m.pp, m.tp, m.cp,
                     m.dp, m.ep, of.strategy.zero, strategy::name(of.strategy.schedule));
}

}  // namespace

TEST_CASE("whole steps on a device are the CPU's, bit for bit, in any order that events allow") {
  int64_t number = 0;
  for (const Case& of : all_cases()) {
    CAPTURE(name_of(of));
    const Trained expected = on_cpu(of, 2);
    // One operation after the other is one of the orders that are tried below.
    if (number++ % 4 == 0 || full_counts()) {
      stand_in::begin(stand_in::Mode::kSynchronous);
      check_same_bits(on_device(of, 2), expected, of.strategy.zero == 0);
      CHECK(stand_in::num_operations() > 1000);
      check_no_races();
    }
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(repetitions({.usual = 1, .full = 6}));
         ++seed) {
      CAPTURE(seed);
      stand_in::begin(stand_in::Mode::kLate, seed);
      check_same_bits(on_device(of, 2), expected, of.strategy.zero == 0);
      check_no_races();
    }
  }
}

TEST_CASE("evaluations on a device are the CPU's, bit for bit") {
  for (const Case& of :
       {make_case(small_model(), mesh_of(1, 2, 2)), make_case(deepseek_like(), mesh_of(2, 2, 2)),
        make_case(with_grouped_products(), mesh_of(1, 1, 1), PipelineSchedule::k1F1B,
                  Recompute::kNone, strategy::Precision::kBf16)}) {
    CAPTURE(name_of(of));
    const schedule::StepGraph evaluation = schedule::write_evaluation(of.model, of.strategy);
    const auto evaluates = [&](RunShared& shared) { shared.evaluation = &evaluation; };
    std::mutex mutex;
    std::map<std::pair<int64_t, int64_t>, double> losses;  // by step and rank
    const auto evaluate = [&](RankTrainer& trainer, int64_t number) {
      const BatchSource batches = [&](int64_t step, int64_t dp, int64_t micro) {
        return batch(of.strategy, step, dp, micro);
      };
      const LossSum sum = trainer.evaluate(1000 + number, batches, number);
      const std::scoped_lock lock(mutex);
      losses[{number, trainer.rank().value}] = sum.loss / sum.target_tokens;
    };
    {
      const Compositions compositions;
      run_training(of.model, of.strategy, 2, {}, 0.3, collective::apart(1), evaluates, evaluate);
    }
    const auto expected = std::exchange(losses, {});
    CHECK(std::ssize(expected) == 2 * of.strategy.mesh.world());
    for (const auto mode : {stand_in::Mode::kSynchronous, stand_in::Mode::kLate}) {
      stand_in::begin(mode, 5);
      on_device(of, 2, evaluate, evaluates);
      CHECK((std::exchange(losses, {}) == expected));
      check_no_races();
    }
  }
}

TEST_CASE("whole steps of ranks that meet in the hosts' memory alone are the CPU's") {
  const std::vector<Case> cases = all_cases();
  const size_t stride = full_counts() ? 1 : 4;
  uint64_t seed = 0;
  for (size_t i = 0; i < cases.size(); i += stride) {
    const Case& of = cases[i];
    if (of.strategy.mesh.world() == 1) continue;
    CAPTURE(name_of(of));
    const Trained expected = on_cpu(of, 2);
    stand_in::begin(stand_in::Mode::kLate, ++seed);
    const Trained trained = on_device(of, 2, {}, [](RunShared& shared) {
      shared.offers = std::make_shared<comm::DeviceOffers>(std::vector{Rank::none()});
    });
    check_same_bits(trained, expected, of.strategy.zero == 0);
    check_no_races();
  }
  CHECK(seed >= 8);
}

// Returns a run of 4 ranks, with experts that move between them.
RunRequest run_of_four(const std::filesystem::path& folder, int64_t pp) {
  constexpr const char* kConfig =
      R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
  "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 64})";
  RunRequest r;
  r.model = model::import_config(parse_json(kConfig, "config.json"), "mixtral");
  r.strategy = cost::example::strategy(r.model, pp, 4 / pp, 4 / pp, 2);
  r.cluster = cost::example::nodes();
  std::string text;
  while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
  r.corpus = data::Corpus(data::Text(text, "text"));
  r.folder = folder;
  r.num_steps = 4;
  r.options.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 0, .total_steps = 4};
  r.options.timeout_seconds = 60;
  r.deviation_bound = 0;
  r.checkpoint_every = 2;
  r.rebalance = balance::parse_rebalance("random:1", "policy");
  r.rebalance.every = 2;
  return r;
}

constexpr const char* kFolder = "PIPER_TEST_FOLDER";
constexpr const char* kStages = "PIPER_TEST_STAGES";

std::vector<Json> metrics_of(const std::filesystem::path& folder) {
  std::vector<Json> lines;
  std::ifstream file(folder / report::kMetricsFile);
  for (std::string line; std::getline(file, line);)
    lines.push_back(parse_json(line, report::kMetricsFile));
  return lines;
}

// Started by the next case.
TEST_CASE("one process of a run on the stand-in device" * doctest::skip()) {
  const std::optional<comm::Launch> launch = comm::launch_from();
  REQUIRE(launch);
  RunRequest r = run_of_four(comm::from_environment(kFolder).value(),
                             std::stoi(comm::from_environment(kStages).value()));
  const std::unique_ptr<comm::World> world = comm::make_process_world(*launch, 4);
  stand_in::begin(stand_in::Mode::kLate, static_cast<uint64_t>(launch->process) + 1);
  r.world = world.get();
  r.devices = place_on_devices(*world, {stand_in::device()});
  train::run_training(r);
  stand_in::finish();
  check_no_races();
}

// Process `p` of two, on this host.
pid_t start_process(int64_t p, const comm::Listener& listener, const std::string& folder,
                    int64_t pp) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("PIPER_PROCESS", std::to_string(p));
  set("PIPER_NUM_PROCESSES", "2");
  set("PIPER_LOCAL_PROCESS", std::to_string(p));
  set("PIPER_MASTER_ADDRESS", comm::kLoopback);
  set("PIPER_MASTER_PORT", std::to_string(listener.port));
  set("PIPER_SECRET", "a secret of the test's own");
  if (p == 0) {
    set("PIPER_LISTEN_FD", std::to_string(listener.fd));
    ::fcntl(listener.fd, F_SETFD, 0);
  }
  set(kFolder, folder);
  set(kStages, std::to_string(pp));
  ::execl("/proc/self/exe", "piper_device_test", "--no-skip", "--minimal",
          "-tc=one process of a run on the stand-in device", nullptr);
  ::_exit(127);
}

TEST_CASE("a run of two processes on devices is the CPU's, its experts moving between them") {
  for (const int64_t pp : {1, 2}) {
    CAPTURE(pp);
    const piper::testing::TestFolder folder;
    const comm::Listener listener = comm::listen_on(comm::kLoopback, 0);
    const std::array<pid_t, 2> processes{start_process(0, listener, folder.path() / "two", pp),
                                         start_process(1, listener, folder.path() / "two", pp)};
    ::close(listener.fd);
    for (const pid_t process : processes) {
      int status = 0;
      REQUIRE(::waitpid(process, &status, 0) == process);
      REQUIRE(status == 0);
    }
    const Compositions compositions;
    const RunResult expected = train::run_training(run_of_four(folder.path() / "one", pp));
    const std::vector<Json> lines = metrics_of(folder.path() / "two");
    REQUIRE(lines.size() == expected.metrics.size());
    int64_t migrated = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      CHECK(lines[i].at("loss").get<double>() == expected.metrics[i]["loss"]);
      CHECK(lines[i].at("grad_norm").get<double>() == expected.metrics[i]["grad_norm"]);
      CHECK(lines[i].at("host_waits").get<int64_t>() > 0);
      migrated += lines[i].value("migrated_experts", int64_t{0});
    }
    CHECK(migrated > 0);
  }
}

// Norm of the difference over the norm.
double distance(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.cpu().to(at::kDouble), b = other.cpu().to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-12)).item<double>();
}

TEST_CASE("whole steps on a CUDA device are the CPU's but for rounding") {
  if (!at::globalContext().hasCUDA()) {
    piper::testing::skip_case("no CUDA device");
    return;
  }
  // Ranks are threads that share the device; fp64 shows what rounding would hide, fp32 and bf16
  // take other kernels.
  for (const Case& given : all_cases())
    for (const bool exact : {true, false}) {
      Case of = given;
      const bool rounds = given.strategy.precision == strategy::Precision::kBf16;
      if (exact && rounds) continue;
      if (exact) of.strategy.precision = strategy::Precision::kFp64;
      CAPTURE(name_of(of));
      CAPTURE(strategy::name(of.strategy.precision));
      const double tolerance = exact ? 1e-8 : rounds ? 0.1 : 2e-3;
      const Trained expected = on_cpu(of, 2), made = on(at::Device(at::kCUDA, 0), of, 2);
      REQUIRE(made.losses.size() == expected.losses.size());
      for (size_t step = 0; step < made.losses.size(); ++step) {
        CHECK(made.losses[step] == doctest::Approx(expected.losses[step]).epsilon(tolerance));
        CHECK(made.norms[step] == doctest::Approx(expected.norms[step]).epsilon(tolerance));
      }
      REQUIRE(made.values.size() == expected.values.size());
      // Where kernels round apart, AdamW may step the other way by a gradient that is all but 0:
      // much of a small tensor, and nothing of the weights together.
      double worst = 0;
      std::vector<at::Tensor> all, others;
      for (const auto& [name, value] : expected.values) {
        CAPTURE(name);
        all.push_back(made.values.at(name).cpu().to(at::kDouble).flatten());
        others.push_back(value.to(at::kDouble).flatten());
        worst = std::max(worst, distance(all.back(), others.back()));
        if (exact) CHECK(distance(all.back(), others.back()) <= tolerance);
      }
      const double together = distance(at::cat(all), at::cat(others));
      CHECK(together <= tolerance);
      MESSAGE(name_of(of), " ", strategy::name(of.strategy.precision), ": weights ", together,
              ", the worst tensor ", worst);
    }
}

TEST_CASE("fused kernels are tried before they compute, and one that is wrong never does") {
  stand_in::begin(stand_in::Mode::kSynchronous);
  const at::Device device = stand_in::device();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // Grouped heads, and values narrower than keys.
    const nn::FusedShape grouped{
        .dtype = dtype, .key_width = 24, .value_width = 24, .queries_per_key = 3};
    const nn::FusedShape narrow{.dtype = dtype, .key_width = 24, .value_width = 16};
    for (const nn::FusedShape& shape : {grouped, narrow})
      CHECK(nn::try_fused_attention(device, shape) == nn::FusedAttention::kMemoryEfficient);
    for (int result = 0; result < stand_in::kFusedResults; ++result) {
      const int64_t width = 40 + 8 * result;  // not tried before
      const nn::FusedShape spoilt{.dtype = dtype, .key_width = width, .value_width = width};
      stand_in::spoil_fused_attention(result);
      CHECK(nn::try_fused_attention(device, spoilt) == nn::FusedAttention::kNone);
      stand_in::spoil_fused_attention(-1);
      CHECK(nn::try_fused_attention(device, spoilt) == nn::FusedAttention::kNone);  // once
    }
    CHECK(nn::try_grouped_products(device, dtype) == (dtype == at::kBFloat16));
    CHECK_FALSE(nn::try_grouped_products(at::kCPU, dtype));
  }
  const nn::FusedShape exact{.dtype = at::kDouble, .key_width = 24, .value_width = 24};
  CHECK(nn::try_fused_attention(device, exact) == nn::FusedAttention::kNone);
  for (const model::Model& model : {small_model(), deepseek_like()}) {
    CAPTURE(model.name);
    const int64_t before = stand_in::num_fused_attentions();
    on_device(make_case(model, mesh_of(1, 1, 1)), 1);
    CHECK(stand_in::num_fused_attentions() > before + 8);
  }
  check_no_races();
}

TEST_CASE("a kernel that is not there is not used; lack of memory, or a broken device, is said") {
  stand_in::begin(stand_in::Mode::kSynchronous);
  for (const at::Device& device : {at::Device(at::kCPU), stand_in::device()}) {
    CHECK(nn::succeeds(device, [] { return true; }));
    CHECK_FALSE(nn::succeeds(device, [] { return false; }));
    CHECK_FALSE(nn::succeeds(device, []() -> bool { throw std::runtime_error("no such kernel"); }));
    CHECK_THROWS_AS(nn::succeeds(device,
                                 []() -> bool {
                                   TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
                                   return false;
                                 }),
                    c10::OutOfMemoryError);
  }
  const auto lost = [] {
    return nn::succeeds(at::Device(at::kXPU),
                        []() -> bool { throw std::runtime_error("illegal access"); });
  };
  CHECK_THROWS_WITH_AS(lost(),
                       doctest::Contains("xpu computes no more since a kernel was tried "
                                         "on it: illegal access"),
                       std::runtime_error);
}

TEST_CASE("experts are computed one by one where that was measured to be faster") {
  const Case of = make_case(with_grouped_products(), mesh_of(1, 1, 1), PipelineSchedule::k1F1B,
                            Recompute::kNone, strategy::Precision::kBf16);
  const auto operations = [&] {
    stand_in::begin(stand_in::Mode::kSynchronous);
    on_device(of, 1);
    return stand_in::num_operations();
  };
  operations();  // with the trial of the grouped product, which is made once
  const int64_t grouped = operations();
  nn::choose_grouped_products(cost::GroupedChoice(
      {{{.rows = 64, .hidden = 64, .ffn = 64, .experts = 4}, /*is_grouped=*/false}}));
  const int64_t one_by_one = operations();
  nn::choose_grouped_products({});
  CHECK(one_by_one > grouped);
  CHECK(operations() == grouped);
  check_no_races();
}

TEST_CASE(
    "every event of the executor that no other implies is needed: without it two operations race") {
  // A case has some hundred events, and each takes a run: so many of them are tried.
  const int64_t per_case = repetitions({.usual = 2, .full = 20});
  std::mt19937_64 random(20260301);
  int64_t num_needed = 0;
  for (Case of : all_cases()) {
    const int64_t num_ranks = of.strategy.mesh.world();
    // Some waits of these carry no data. With tensor parallelism and deduplication a task waits for
    // what a later one reads. A gather of divided weights waits so that no more than two layers'
    // have memory, a hop of a ring for the step before, a copy to the host for those that read the
    // same slots, and one from it for its turn. Who has no copy of another's expert waits as well.
    // With divided gradients one wait was found whose absence races nothing, unexplained so far.
    if (num_ranks == 1 || of.strategy.mesh.tp > 1 || of.strategy.mesh.cp > 1 ||
        of.strategy.zero >= 2 || of.strategy.redundant_experts > 0 ||
        of.strategy.offload != strategy::Offload::kNone || strategy::deduplicates(of.strategy))
      continue;
    CAPTURE(name_of(of));
    of.strategy.global_batch_sequences = 4 * of.strategy.mesh.dp;
    of.strategy.num_micro_batches = 4;
    stand_in::begin(stand_in::Mode::kSynchronous);
    on_device(of, 2);
    std::vector<stand_in::Wait> waits;
    for (int64_t rank = 0; rank < num_ranks; ++rank)
      for (int64_t i = 0; i < stand_in::num_waits(rank); ++i) waits.push_back({rank, i});
    CHECK(std::ssize(waits) > 20);
    std::ranges::shuffle(waits, random);
    waits.resize(static_cast<size_t>(std::min(per_case, std::ssize(waits))));
    for (const stand_in::Wait& wait : waits) {
      // Now and then the host has read counts between a task's first operation and that which reads
      // what was waited for, and so has waited itself: such a run shows nothing.
      constexpr int kTries = 4;
      bool is_implied = false;
      for (int i = 0; i < kTries && !is_implied && (i == 0 || stand_in::races().empty()); ++i) {
        stand_in::begin(stand_in::Mode::kSynchronous);
        stand_in::leave_out(wait);
        on_device(of, 2);
        is_implied = stand_in::was_implied();
      }
      if (is_implied) continue;
      ++num_needed;
      CAPTURE(wait.thread);
      CAPTURE(wait.number);
      CAPTURE(stand_in::behind_left_out());
      CHECK_FALSE(stand_in::races().empty());
    }
  }
  MESSAGE(num_needed, " waits left out were needed");
  CHECK(num_needed >= 10);
}

TEST_CASE("the host waits for the counts once a layer, and twice at the end of a step") {
  Case of = make_case(small_model(), mesh_of(1, 2, 2));
  for (const double factor : {0., 1.}) {
    CAPTURE(factor);
    of.strategy.capacity.factor = factor;
    stand_in::begin(stand_in::Mode::kLate);
    constexpr int64_t kMixtureLayers = 3;
    CHECK(on_device(of, 3).host_waits == kMixtureLayers * of.strategy.num_micro_batches + 2);
    CHECK(on_cpu(of, 1).host_waits == 0);
  }
}

TEST_CASE("the host waits for no counts where a rank has all experts, which are one product") {
  const model::Model with_module = model::with_mtp(with_grouped_products(), 1);
  for (const auto& [pp, tp, factor] :
       {std::tuple{1, 1, 0.}, {2, 1, 0.}, {1, 2, 0.}, {1, 1, 1.}, {2, 1, 0.5}}) {
    Case of = make_case(with_module, mesh_of(pp, 1, 1, tp), PipelineSchedule::k1F1B,
                        Recompute::kNone, strategy::Precision::kBf16);
    of.strategy.capacity.factor = factor;
    CAPTURE(factor);
    stand_in::begin(stand_in::Mode::kLate);
    const Trained trained = on_device(of, 2), expected = on_cpu(of, 2);
    CHECK(trained.host_waits == 2);
    check_same_bits(trained, expected, true);
    CHECK(trained.dropped == expected.dropped);
    CHECK((trained.dropped > 0) == (factor > 0));
    check_no_races();
  }
}

TEST_CASE("the host waits for no counts of experts that are sent their whole capacity") {
  const model::Model with_module = model::with_mtp(with_grouped_products(), 1);
  for (const auto& [pp, ep, recompute] : {std::tuple{1, 2, Recompute::kNone},
                                          {2, 2, Recompute::kFull},
                                          {1, 1, Recompute::kExperts}}) {
    Case of = make_case(with_module, mesh_of(pp, ep, ep), PipelineSchedule::k1F1B, recompute,
                        strategy::Precision::kBf16);
    of.strategy.capacity = {.factor = 1, .pads = true};
    CAPTURE(name_of(of));
    stand_in::begin(stand_in::Mode::kLate);
    const Trained trained = on_device(of, 2), expected = on_cpu(of, 2);
    CHECK(trained.host_waits == 2);
    check_same_bits(trained, expected, true);
    CHECK(trained.dropped == expected.dropped);
    CHECK(trained.dropped > 0);
    check_no_races();
  }
}

// Cases with equal words have equal work for the host within a step.
std::string host_work_of(const Case& of) {
  const strategy::Strategy& s = of.strategy;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", s.zero, of.model.mtp_depth,
                     s.mesh.cp > 1, s.mesh.tp > 1, s.mesh.etp > 1, s.capacity.factor > 0,
                     s.capacity.pads, s.redundant_experts > 0, s.expert_compression > 0,
                     strategy::name(s.offload), strategy::deduplicates(s),
                     strategy::name(s.moe_schedule));
}

TEST_CASE("nobody waits for a device but through read_on_host()") {
  std::set<std::string> seen;
  for (const Case& of : all_cases()) {
    if (!seen.insert(host_work_of(of)).second && !full_counts()) continue;
    CAPTURE(name_of(of));
    // The two differ by what the second step did, after the trials of kernels; by rank.
    struct Seen {
      int64_t waits = 0, reads = 0, by_others = 0;
    };
    std::vector<Seen> before(static_cast<size_t>(of.strategy.mesh.world())), after = before;
    stand_in::begin(stand_in::Mode::kSynchronous);
    on_device(of, 3, [&](RankTrainer& trainer, int64_t number) {
      const int64_t rank = trainer.rank().value;
      if (number == 2 || number == 3)
        (number == 2 ? before : after)[static_cast<size_t>(rank)] = {
            nn::num_host_waits(), stand_in::num_host_reads(rank),
            stand_in::num_host_reads(stand_in::kNamelessThreads)};
    });
    for (size_t rank = 0; rank < before.size(); ++rank) {
      CHECK(after[rank].reads - before[rank].reads >= 2);
      CHECK(after[rank].reads - before[rank].reads == after[rank].waits - before[rank].waits);
      CHECK(after[rank].by_others == before[rank].by_others);
    }
  }
}

TEST_CASE("whole segments calibrate a device's prices as they do a processor's") {
  cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  const auto calibrated = [&](at::Device device) {
    cluster.numbers.clear();
    stand_in::begin(stand_in::Mode::kLate);
    profile::calibrate_segments(cluster, strategy::Precision::kBf16,
                                {.num_ranks = 1,
                                 .num_cores = 1,
                                 .num_repeats = 1,
                                 .device = {device},
                                 .reference = &profile::reference_for({})});
    return cluster.numbers;
  };
  const auto on_cpu = calibrated(at::kCPU);
  const int64_t reads = stand_in::num_host_reads();
  const auto on_device = calibrated(stand_in::device());
  CHECK(stand_in::num_host_reads() > reads);  // it did compute there
  int num_factors = 0;
  for (const auto& [name, factor] : on_cpu) {
    if (!name.starts_with("measured_over_priced.")) continue;
    ++num_factors;
    CAPTURE(name);
    REQUIRE(on_device.contains(name));
    CHECK(on_device.at(name) > 0);
  }
  CHECK(num_factors == 12);
  // By which a run sees whether a processor is as fast as when it was profiled.
  const std::string window = profile::reference_pass_name(strategy::Precision::kBf16);
  CHECK(on_cpu.contains(window));
  CHECK(!on_device.contains(window));
}

TEST_CASE("links between ranks on devices are measured there") {
  const auto measured = [](std::vector<at::Device> devices) {
    stand_in::begin(stand_in::Mode::kSynchronous);
    profile::TimeShares shares(0.5, 64, executor::now_seconds);
    profile::ProfileJournal journal;
    return profile::measure_links(
        {.num_ranks = 3, .devices = std::move(devices), .full = true, .operand_bytes = 4e6}, shares,
        journal, {});
  };
  const std::vector<cluster::Curve> on_host = measured({});
  CHECK(stand_in::num_operations() == 0);
  const std::vector<cluster::Curve> on_device = measured({stand_in::device()});
  CHECK(stand_in::num_operations() > 1000);
  CHECK(stand_in::num_host_reads() == 0);
  check_no_races();
  REQUIRE(on_device.size() == on_host.size());
  for (size_t c = 0; c < on_device.size(); ++c) {
    CAPTURE(on_device[c].name);
    CHECK(on_device[c].name == on_host[c].name);
    CHECK(on_device[c].points.size() >= 5);
    CHECK(on_device[c].fit->line.bytes_per_second > 0);
  }
}

TEST_CASE("a host that reads a device's memory dies") {
  const at::Tensor tensor =
      at::ones({4}, at::TensorOptions().device(stand_in::device()).dtype(at::kFloat));
  CHECK(tensor.cpu().sum().item<float>() == 4);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    volatile float read = *tensor.const_data_ptr<float>();
    (void)read;
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}

}  // namespace piper::train
