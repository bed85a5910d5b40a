#include <ATen/Parallel.h>
#include <bench/step_bench.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/executor/clock.h>
#include <piper/nn/counting_allocator.h>
#include <piper/train/prediction.h>
#include <piper/train/process_agreement.h>

#include <mutex>
#include <sstream>

namespace piper::train {
namespace {

constexpr double kTimeoutSeconds = 120;
constexpr uint64_t kMeetingKeys = uint64_t{1} << 62;  // beside the steps' own

// theta := theta - rate gradient.
void descend(nn::BenchStage& stage, double rate) {
  if (rate == 0) return;
  for (const nn::Parameter& parameter : stage.parameters()) {
    at::Tensor value = parameter.value;
    value.sub_(parameter.gradient, rate);
  }
}

at::Tensor concatenated(const std::vector<executor::MicroBatch>& batches,
                        at::Tensor executor::MicroBatch::*member) {
  std::vector<at::Tensor> defined;
  for (const executor::MicroBatch& batch : batches)
    if ((batch.*member).defined()) defined.push_back(batch.*member);
  return defined.empty() ? at::Tensor() : at::cat(defined);
}

std::vector<double> numbers_of(const std::vector<std::string>& texts) {
  std::vector<double> numbers;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    for (double number = 0; in >> number;) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

StepBench::StepBench(comm::World& world, const model::Model& model,
                     const strategy::Strategy& strategy, double learning_rate,
                     const std::function<BenchPart(Rank)>& make)
    : world_(world),
      model_(model),
      strategy_(strategy),
      learning_rate_(learning_rate),
      step_(checked_step(model, strategy, {.divides_dense_blocks = false})) {
  std::mutex mutex;
  run_ranks(world_, [&](comm::Transport& transport) {
    const nn::AllocatingRank allocating(transport.rank());
    BenchPart part = make(transport.rank());
    const std::lock_guard lock(mutex);
    parts_.emplace(transport.rank(), std::move(part));
  });
}

void StepBench::meet(comm::Transport& transport, int64_t number) const {
  barrier(transport, kMeetingKeys + static_cast<uint64_t>(number), kTimeoutSeconds);
}

void StepBench::execute(comm::Transport& transport, BenchPart& part, int64_t first,
                        int64_t num_steps) const {
  executor::Cores cores(0);
  executor::Executor executor(step_, strategy_, model_, transport.rank(), *part.stage, transport,
                              cores, {.timeout_seconds = kTimeoutSeconds});
  const executor::Update update{
      .local_statistics = [](std::span<double>) {},
      .apply = [&](std::span<const double>) { descend(*part.stage, learning_rate_); },
      .num_statistics = 1};
  for (int64_t i = 0; i < num_steps; ++i) {
    part.stage->zero_gradients();
    executor.run_step(first + i, part.micro_batches, update, nullptr);
  }
}

std::vector<double> StepBench::timed(int64_t repeats, const Work& work) {
  const int64_t meeting = next_meeting_;
  next_meeting_ += 2;
  std::map<Rank, double> seconds;
  for (const Rank rank : world_.local_ranks()) seconds[rank] = 0;
  run_ranks(world_, [&](comm::Transport& transport) {
    at::set_num_threads(1);
    const nn::AllocatingRank allocating(transport.rank());
    BenchPart& part = parts_.at(transport.rank());
    meet(transport, meeting);
    const double start = executor::now_seconds();
    work(transport, part);
    meet(transport, meeting + 1);
    seconds.at(transport.rank()) = (executor::now_seconds() - start) / static_cast<double>(repeats);
  });
  std::string text;
  for (const auto& [rank, of_rank] : seconds) text += fmt::format("{:.9e} ", of_rank);
  return numbers_of(world_.share("seconds", text));
}

std::vector<double> StepBench::step_seconds(int64_t num_steps) {
  const int64_t first = next_step_;
  next_step_ += num_steps;
  return timed(num_steps, [&](comm::Transport& transport, BenchPart& part) {
    execute(transport, part, first, num_steps);
  });
}

std::vector<double> StepBench::product_seconds(int64_t num_repeats) {
  timed(1, [](comm::Transport&, BenchPart& part) { part.stage->run_products(); });
  return timed(num_repeats, [&](comm::Transport&, BenchPart& part) {
    for (int64_t i = 0; i < num_repeats; ++i) part.stage->run_products();
  });
}

std::map<Rank, BenchRecord> StepBench::record() {
  std::map<Rank, BenchRecord> records;
  for (auto& [rank, part] : parts_) {
    part.stage->take_loss();
    for (const nn::Parameter& parameter : part.stage->parameters())
      records[rank].tensors.push_back({parameter.name, parameter.value.clone()});
  }
  step_seconds(1);
  for (auto& [rank, part] : parts_) {
    std::vector<nn::NamedTensor>& tensors = records[rank].tensors;
    const auto add = [&](const std::string& name, const at::Tensor& value) {
      if (value.defined()) tensors.push_back({name, value.clone()});
    };
    records[rank].loss = part.stage->take_loss();
    add("x", concatenated(part.micro_batches, &executor::MicroBatch::tokens_BS));
    add("target", concatenated(part.micro_batches, &executor::MicroBatch::targets_T));
    for (const nn::Parameter& parameter : part.stage->parameters())
      add(parameter.name + ".gradient", parameter.gradient);
    for (const nn::BenchStage::Result& result : part.stage->results())
      add(result.name, result.value);
  }
  return records;
}

}  // namespace piper::train
