#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/comm/descriptors.h>
#include <piper/comm/guarded_acceptor.h>
#include <piper/comm/local_secret.h>
#include <piper/comm/local_transport.h>
#include <piper/comm/message_protocol.h>
#include <piper/comm/mpi_plugin.h>
#include <piper/comm/network.h>
#include <piper/comm/process_world.h>
#include <piper/comm/tcp_wire.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <exception>
#include <filesystem>

namespace piper::comm {
namespace {

using internal::Failure;
using internal::LocalState;
using internal::MessageProtocol;

// What the ranks of this process do.
class Activities {
 public:
  Activities(int64_t first, int64_t count) : first_(first), ranks_(count) {
    for (int64_t r = 0; r < count; ++r) ranks_[r].now.rank = Rank(first + r);
  }

  void note(Rank rank, int64_t step, std::string_view operation) {
    One& one = ranks_.at(rank.value - first_);
    const std::lock_guard lock(one.mutex);
    one.now.step = step;
    one.now.operation.assign(operation);
  }

  std::vector<RankActivity> all() const {
    std::vector<RankActivity> activities;
    for (const One& one : ranks_) {
      const std::lock_guard lock(one.mutex);
      activities.push_back(one.now);
    }
    return activities;
  }

 private:
  struct One {
    mutable std::mutex mutex;
    RankActivity now;
  };
  int64_t first_;
  std::deque<One> ranks_;
};

// Where the launcher's secret can be guessed: makes a random one if all processes are on one host,
// else process 0 prints a warning.
std::optional<LocalSecret> improve_secret(Launch& launch) {
  if (!launch.secret_can_be_guessed) return {};
  auto local = launch.one_host ? local_secret(launch.secret) : std::nullopt;
  if (local) {
    launch.secret = local->text;
    return local;
  }
  if (launch.process == 0)
    fmt::print(stderr,
               "piper: whoever reaches this run's ports and guesses what {} calls it can join: set "
               "PIPER_SECRET on every host to what `openssl rand -hex 32` prints\n",
               to_string(launch.launcher));
  return {};
}

// Shared by the world and its endpoints, which may outlive it. Destroyed from the bottom: first the
// wire's thread ends, then the control channel's.
class ProcessState {
 public:
  ProcessState(Launch launch, int64_t num_ranks, const ProcessOptions& options)
      : ranks_per_process_(num_ranks / launch.num_processes),
        activities_(launch.process * ranks_per_process_, ranks_per_process_),
        protocol_(num_ranks, launch.num_processes, launch.process,
                  {.failed = [this](const Failure& failure) { tell(failure); },
                   .lost = [this](int64_t process,
                                  const std::string& why) { control_->suspect(process, why); }}) {
    const std::optional<LocalSecret> secret = improve_secret(launch);
    if (launch.launcher == Launcher::kOpenMpi || launch.launcher == Launcher::kMpich) {
      std::unique_ptr<MpiWire> wire = open_mpi_wire(launch, options.control);
      mpi_ = wire.get();
      wire_ = std::move(wire);
    }
    control_ = std::make_unique<Control>(launch, num_ranks, options.control, events());
    try {
      if (wire_ == nullptr) connect_tcp(launch, num_ranks, options.control);
      protocol_.attach(*wire_);
      control_->share("start of messages", "");
      std::error_code ignored;
      if (launch.process == 0 && secret)  // all have read it
        std::filesystem::remove(secret->file, ignored);
      control_->stop_admitting();
      wire_->start(protocol_);
    } catch (const std::exception& error) {
      control_->report({activities_.all().front().rank, cause_of(error)});
      control_->leave();
      throw;
    }
  }

  LocalState& state() { return protocol_.state(); }
  Control& control() { return *control_; }
  Activities& activities() { return activities_; }
  MpiWire* mpi() const { return mpi_; }

  // The world is over, in peace or not; endpoints that are left fail.
  void close() {
    if (!state().failed() && std::uncaught_exceptions() > 0)
      state().fail(activities_.all().front().rank, "its process ended by an exception");
    if (control_->leave())
      wire_->close();
    else
      wire_->abandon();
    told_ = true;
    state().fail(Rank(0), "the world is over");
  }

 private:
  ControlEvents events() {
    return {.failed =
                [this](const FailureBody& failure) {
                  told_ = true;
                  protocol_.state().fail(failure.rank, failure.reason, failure.fault);
                },
            .activity = [this] { return activities_.all(); }};
  }

  void tell(const Failure& failure) {
    if (!told_) control_->report({failure.rank, failure.reason, failure.fault});
  }

  void connect_tcp(const Launch& launch, int64_t num_ranks, const ControlOptions& options) {
    const std::string address =
        options.interface.empty() ? control_->local_address() : numeric_address(options.interface);
    const Identity mine{launch.process, launch.num_processes, num_ranks, host_name(), getpid()};
    auto wire = std::make_unique<TcpWire>(mine, launch.secret, address, options.reach());
    wire->connect(control_->share("addresses", wire->address()), options.connect_timeout_seconds);
    wire_ = std::move(wire);
  }

  int64_t ranks_per_process_;
  std::atomic<bool> told_{false};  // the others know of the failure
  Activities activities_;
  MessageProtocol protocol_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Wire> wire_;
  MpiWire* mpi_ = nullptr;  // of wire_, where it is one
};

class ProcessWorld final : public World {
 public:
  ProcessWorld(const Launch& launch, int64_t num_ranks, const ProcessOptions& options)
      : launch_(launch),
        num_ranks_(num_ranks),
        state_(std::make_shared<ProcessState>(launch, num_ranks, options)) {}
  ~ProcessWorld() override { state_->close(); }

  int64_t size() const override { return num_ranks_; }
  MpiWire* mpi() const { return num_ranks_ == launch_.num_processes ? state_->mpi() : nullptr; }
  int64_t process() const override { return launch_.process; }
  int64_t num_processes() const override { return launch_.num_processes; }

  std::vector<Rank> local_ranks() const override {
    const int64_t count = num_ranks_ / launch_.num_processes;
    std::vector<Rank> ranks;
    for (int64_t r = 0; r < count; ++r) ranks.emplace_back(launch_.process * count + r);
    return ranks;
  }

  std::unique_ptr<Transport> endpoint(Rank rank) override {
    const std::vector<Rank> local = local_ranks();
    PIPER_CHECK(rank >= local.front() && rank <= local.back(),
                fmt::format("rank {} in process {}", rank.value, launch_.process));
    return internal::make_local_transport(std::shared_ptr<LocalState>(state_, &state_->state()),
                                          rank);
  }

  Rank failed_rank() const override { return state_->state().failure().rank; }
  std::string failure_reason() const override { return state_->state().failure().reason; }
  Fault failure_fault() const override { return state_->state().failure().fault; }
  std::vector<std::string> share(const std::string& what, const std::string& text) override {
    return state_->control().share(what, text);
  }
  void note(Rank rank, int64_t step, std::string_view operation) override {
    state_->activities().note(rank, step, operation);
    state_->control().activity_changed();
  }

 private:
  Launch launch_;
  int64_t num_ranks_;
  std::shared_ptr<ProcessState> state_;
};

}  // namespace

std::unique_ptr<World> make_process_world(const Launch& launch, int64_t num_ranks,
                                          const ProcessOptions& options) {
  if (num_ranks < launch.num_processes || num_ranks % launch.num_processes != 0)
    throw InvalidInput(fmt::format(
        "{} started {} processes, and the strategy needs {} ranks; allowed: a number of processes "
        "that divides the number of ranks",
        to_string(launch.launcher), launch.num_processes, num_ranks));
  // A control connection, two of the wire, and what knocks at its ports.
  raise_descriptor_limit(3 * launch.num_processes +
                         2 * static_cast<int64_t>(internal::kMaxStrangers) + 256);
  return std::make_unique<ProcessWorld>(launch, num_ranks, options);
}

NativeAllToAll native_all_to_all(World& world) {
  const auto* const processes = dynamic_cast<const ProcessWorld*>(&world);
  MpiWire* const mpi = processes != nullptr ? processes->mpi() : nullptr;
  if (mpi == nullptr) return {};
  return [mpi](std::span<const std::byte> sent, std::span<const int> sent_bytes,
               std::span<std::byte> received, std::span<const int> received_bytes) {
    mpi->all_to_all(sent, sent_bytes, received, received_bytes);
  };
}

}  // namespace piper::comm
