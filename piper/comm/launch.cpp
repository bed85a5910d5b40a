#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/launch.h>

#include <charconv>
#include <cstdlib>

namespace piper::comm {
namespace {

constexpr int64_t kMaxProcesses = 1 << 20;
constexpr int kDefaultPort = 29400;

// Reads variables and collects what is wrong with them.
class Reader {
 public:
  explicit Reader(const LookUp& look_up) : look_up_(look_up) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = look_up_(name);
    return value && value->empty() ? std::nullopt : value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  // `fallback` when the variable is absent; a problem when it is no integer in [low, high].
  int64_t integer(const std::string& name, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = {}) {
    const auto value = text(name);
    if (!value) {
      if (!fallback) problems_.push_back(name + " is not set, although the launcher's others are");
      return fallback.value_or(low);
    }
    int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto [rest, error] = std::from_chars(value->data(), end, number);
    if (error == std::errc() && rest == end && number >= low && number <= high) return number;
    problems_.push_back(fmt::format("{} is '{}'; allowed: an integer from {} to {}", name,
                                    printable(*value), low, high));
    return fallback.value_or(low);
  }

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  void finish() const {
    if (!problems_.empty()) throw InvalidInput(problems_);
  }

 private:
  const LookUp& look_up_;
  std::vector<std::string> problems_;
};

struct Names {
  Launcher launcher;
  std::string process, num_processes, local_process, num_local_processes;
};

std::optional<Names> recognise(const Reader& reader) {
  if (reader.has("PIPER_PROCESS") || reader.has("PIPER_NUM_PROCESSES"))
    return Names{Launcher::kPiper, "PIPER_PROCESS", "PIPER_NUM_PROCESSES", "PIPER_LOCAL_PROCESS",
                 "PIPER_NUM_LOCAL_PROCESSES"};
  if (reader.has("RANK") && reader.has("WORLD_SIZE"))
    return Names{Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  if (reader.has("OMPI_COMM_WORLD_RANK") || reader.has("OMPI_COMM_WORLD_SIZE"))
    return Names{Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                 "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
  // Slurm's own PMI sets these two, too.
  if (reader.has("PMI_RANK") && reader.has("PMI_SIZE") &&
      (reader.has("MPI_LOCALRANKID") || !reader.has("SLURM_STEP_ID")))
    return Names{Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  if (reader.has("SLURM_PROCID") && reader.has("SLURM_STEP_ID"))
    return Names{Launcher::kSlurm, "SLURM_PROCID",
                 reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
                 "SLURM_LOCALID", ""};
  return std::nullopt;
}

void read_place(Reader& reader, const Names& names, Launch& launch) {
  launch.num_processes = reader.integer(names.num_processes, 1, kMaxProcesses);
  launch.process = reader.integer(names.process, 0, kMaxProcesses);
  launch.local_process = reader.integer(names.local_process, 0, kMaxProcesses, 0);
  if (!names.num_local_processes.empty())
    launch.num_local_processes = reader.integer(names.num_local_processes, 0, kMaxProcesses, 0);
  reader.finish();
  if (launch.process >= launch.num_processes)
    reader.problem(fmt::format("{} is {}, but {} is {}; allowed: less than that", names.process,
                               launch.process, names.num_processes, launch.num_processes));
  if (launch.local_process > launch.process)
    reader.problem(fmt::format("{} is {}, but {} is {}; allowed: at most that", names.local_process,
                               launch.local_process, names.process, launch.process));
  reader.finish();
}

// torchrun's own store listens on MASTER_PORT, in the agent.
int read_port(Reader& reader, Launcher launcher) {
  if (reader.has("PIPER_MASTER_PORT"))
    return static_cast<int>(reader.integer("PIPER_MASTER_PORT", 1, 65535));
  switch (launcher) {
    case Launcher::kTorchrun:
      return static_cast<int>(reader.integer("MASTER_PORT", 1, 65534)) + 1;
    case Launcher::kPiper:
      return static_cast<int>(reader.integer("PIPER_MASTER_PORT", 1, 65535));
    case Launcher::kSlurm:
      return kDefaultPort +
             static_cast<int>(reader.integer("SLURM_JOB_ID", 0, INT64_MAX, 0) % 1000);
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      return 0;
  }
  return 0;
}

std::string read_address(Reader& reader, Launcher launcher) {
  if (const auto address = reader.text("PIPER_MASTER_ADDRESS")) return *address;
  switch (launcher) {
    case Launcher::kTorchrun:
      if (const auto address = reader.text("MASTER_ADDR")) return *address;
      reader.problem("MASTER_ADDR is not set, although the launcher's others are");
      return "";
    case Launcher::kPiper:
      return "127.0.0.1";
    case Launcher::kSlurm:
      if (reader.integer("SLURM_STEP_NUM_NODES", 1, kMaxProcesses, 1) > 1)
        reader.problem(
            "PIPER_MASTER_ADDRESS is not set: an srun over several nodes needs the name of the one "
            "that rank 0 is on (the job's first, unless a host file says otherwise)");
      return "127.0.0.1";
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      return "";
  }
  return "";
}

std::string read_secret(Reader& reader, Launcher launcher) {
  if (const auto secret = reader.text("PIPER_SECRET")) {
    if (secret->size() < kMinSecretBytes)  // its value is nobody's business
      reader.problem(
          fmt::format("PIPER_SECRET has {} bytes; allowed: at least {}, for instance what `openssl "
                      "rand -hex 32` "
                      "prints",
                      secret->size(), kMinSecretBytes));
    return *secret;
  }
  switch (launcher) {
    case Launcher::kPiper:
      reader.problem("PIPER_SECRET is not set, although the launcher's others are");
      return "";
    case Launcher::kTorchrun:
      return fmt::format("torchrun:{}:{}:{}:{}", reader.text("TORCHELASTIC_RUN_ID").value_or(""),
                         reader.text("TORCHELASTIC_RESTART_COUNT").value_or(""),
                         reader.text("MASTER_ADDR").value_or(""),
                         reader.text("MASTER_PORT").value_or(""));
    case Launcher::kSlurm:
      return "slurm:" + reader.text("SLURM_JOB_ID").value_or("") + ":" +
             reader.text("SLURM_STEP_ID").value_or("");
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      return "";  // MPI tells a random one
  }
  return "";
}

}  // namespace

const char* to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::kPiper:
      return "piper";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kMpich:
      return "MPICH";
    case Launcher::kSlurm:
      return "Slurm";
  }
  return "";
}

std::optional<std::string> from_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nobody sets any
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<Launch> launch_from(const LookUp& look_up) {
  Reader reader(look_up);
  const std::optional<Names> names = recognise(reader);
  if (!names) return std::nullopt;
  Launch launch{.launcher = names->launcher};
  read_place(reader, *names, launch);
  if (launch.num_processes == 1) return std::nullopt;
  launch.listen_fd = launch.process == 0
                         ? static_cast<int>(reader.integer("PIPER_LISTEN_FD", 0, INT32_MAX, -1))
                         : -1;
  launch.master_address = read_address(reader, launch.launcher);
  launch.master_port = read_port(reader, launch.launcher);
  launch.secret = read_secret(reader, launch.launcher);
  launch.secret_can_be_guessed =
      !reader.has("PIPER_SECRET") &&
      (launch.launcher == Launcher::kTorchrun || launch.launcher == Launcher::kSlurm);
  launch.one_host = launch.launcher == Launcher::kSlurm
                        ? reader.integer("SLURM_STEP_NUM_NODES", 1, kMaxProcesses, 1) == 1
                        : launch.num_local_processes == launch.num_processes;
  reader.finish();
  return launch;
}

}  // namespace piper::comm
