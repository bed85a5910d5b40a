#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/comm/launch.h>
#include <piper/comm/local_secret.h>
#include <piper/comm/secret.h>

#include <filesystem>
#include <map>

namespace piper::comm {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<Launch> launch_of(const Environment& environment) {
  return launch_from([&](const std::string& name) -> std::optional<std::string> {
    const auto place = environment.find(name);
    return place == environment.end() ? std::nullopt : std::optional(place->second);
  });
}

std::string problem_of(const Environment& environment) {
  try {
    launch_of(environment);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

const Environment kPiper{{"PIPER_PROCESS", "0"},
                         {"PIPER_NUM_PROCESSES", "4"},
                         {"PIPER_LOCAL_PROCESS", "0"},
                         {"PIPER_MASTER_PORT", "4000"},
                         {"PIPER_SECRET", "a secret of the run"},
                         {"PIPER_LISTEN_FD", "7"}};
const Environment kTorchrun{{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "a"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "r1"}};
const Environment kSlurm{{"SLURM_PROCID", "1"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}};
const Environment kMpich{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST_CASE("every launcher's environment tells the process its place") {
  struct Row {
    Environment environment;
    Launcher launcher;
    int64_t process, num_processes, local_process;
    std::string address;
    int port;
    std::string secret;
  };
  const std::vector<Row> rows{
      {kPiper, Launcher::kPiper, 0, 4, 0, "127.0.0.1", 4000, "a secret of the run"},
      {kTorchrun, Launcher::kTorchrun, 3, 8, 1, "a", 29501, "torchrun:r1::a:29500"},
      {with(kTorchrun, {{"PIPER_MASTER_PORT", "5"}, {"PIPER_SECRET", "0123456789abcdef"}}),
       Launcher::kTorchrun, 3, 8, 1, "a", 5, "0123456789abcdef"},
      {kSlurm, Launcher::kSlurm, 1, 2, 1, "127.0.0.1", 29477, "slurm:77:0"},
      {with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "3"}}), Launcher::kSlurm, 1, 3, 1, "127.0.0.1", 29477,
       "slurm:77:0"},
      {kOpenMpi, Launcher::kOpenMpi, 2, 4, 2, "", 0, ""},
      {kMpich, Launcher::kMpich, 1, 4, 1, "", 0, ""},
      {with(kSlurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), Launcher::kSlurm, 1, 2, 1, "127.0.0.1",
       29477, "slurm:77:0"},
      // The launcher that was started last decides.
      {with(kSlurm, kOpenMpi), Launcher::kOpenMpi, 2, 4, 2, "", 0, ""},
      {with(kOpenMpi, kTorchrun), Launcher::kTorchrun, 3, 8, 1, "a", 29501, "torchrun:r1::a:29500"},
      {with(kTorchrun, kPiper), Launcher::kPiper, 0, 4, 0, "127.0.0.1", 4000,
       "a secret of the run"},
  };
  for (const Row& row : rows) {
    const std::optional<Launch> launch = launch_of(row.environment);
    REQUIRE(launch.has_value());
    CAPTURE(to_string(row.launcher));
    CHECK(launch->launcher == row.launcher);
    CHECK(launch->process == row.process);
    CHECK(launch->num_processes == row.num_processes);
    CHECK(launch->local_process == row.local_process);
    CHECK(launch->master_address == row.address);
    CHECK(launch->master_port == row.port);
    CHECK(launch->secret == row.secret);
  }
  CHECK(launch_of(kPiper)->listen_fd == 7);
  CHECK(launch_of(kTorchrun)->num_local_processes == 2);
  CHECK(launch_of(with(kPiper, {{"PIPER_PROCESS", "1"}}))->listen_fd == -1);
}

TEST_CASE("where no launcher tells a secret, processes of one host share a random one") {
  CHECK_FALSE(launch_of(kPiper)->secret_can_be_guessed);
  CHECK_FALSE(launch_of(kOpenMpi)->secret_can_be_guessed);
  CHECK_FALSE(
      launch_of(with(kSlurm, {{"PIPER_SECRET", "0123456789abcdef"}}))->secret_can_be_guessed);
  CHECK(launch_of(kSlurm)->secret_can_be_guessed);
  CHECK(launch_of(kSlurm)->one_host);
  CHECK(launch_of(kTorchrun)->secret_can_be_guessed);
  CHECK_FALSE(launch_of(kTorchrun)->one_host);  // 2 of 8 processes are here
  CHECK(launch_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}}))->one_host);

  const std::string run = "launch_test " + random_secret();
  const auto one = local_secret(run), other = local_secret(run), next = local_secret(run + "2");
  REQUIRE((one && other && next));
  CHECK(one->text.size() == 64);
  CHECK(one->text == other->text);
  CHECK(one->text != next->text);
  namespace fs = std::filesystem;
  CHECK(fs::status(one->file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  // What others may read is no secret.
  fs::permissions(one->file, fs::perms::group_read, fs::perm_options::add);
  const auto elsewhere = local_secret(run);
  CHECK((!elsewhere || elsewhere->file != one->file));
  for (const auto& made : {one, next, elsewhere})
    if (made) fs::remove(made->file);
}

TEST_CASE("the file of a run that was killed is no secret of the next, and is removed") {
  namespace fs = std::filesystem;
  const std::string run = "launch_test " + random_secret();
  auto killed = local_secret(run), of_another = local_secret(run + " 2");
  REQUIRE((killed && of_another));
  const fs::path left = of_another->file;
  const std::string stale = killed->text;
  {
    const auto peer = local_secret(run);  // while one process holds it, it is the run's
    REQUIRE(peer);
    CHECK(peer->text == stale);
  }
  of_another.reset();  // as a process that is killed
  killed.reset();
  CHECK(fs::exists(left));
  const auto next = local_secret(run);
  REQUIRE(next);
  CHECK(next->text != stale);
  CHECK_FALSE(fs::exists(left));
  fs::remove(next->file);
}

TEST_CASE("a single process needs no launcher") {
  CHECK_FALSE(launch_of({}).has_value());
  CHECK_FALSE(launch_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  CHECK_FALSE(launch_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  // The script of a batch job sees the job's variables, but is no task of a step.
  CHECK_FALSE(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST_CASE("what is malformed, missing or contradictory is named") {
  const std::vector<std::pair<Environment, std::string>> rows{
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "two"}}),
       "OMPI_COMM_WORLD_RANK is 'two'; allowed: an integer from 0 to 1048576"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}),
       "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4; allowed: less than that"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}),
       "OMPI_COMM_WORLD_LOCAL_RANK is 3, but OMPI_COMM_WORLD_RANK is 2; allowed: at most that"},
      {with(kMpich, {{"PMI_SIZE", "-1"}}),
       "PMI_SIZE is '-1'; allowed: an integer from 1 to 1048576"},
      {with(kPiper, {{"PIPER_SECRET", "0123456789abcde"}}),
       "PIPER_SECRET has 15 bytes; allowed: at least 16, for instance what `openssl rand -hex 32` "
       "prints"},
      {with(kPiper, {{"PIPER_SECRET", ""}}),
       "PIPER_SECRET is not set, although the launcher's others are"},
      {with(kPiper, {{"PIPER_MASTER_PORT", "70000"}, {"PIPER_LISTEN_FD", "x"}}),
       "PIPER_LISTEN_FD is 'x'; allowed: an integer from 0 to 2147483647\n"
       "PIPER_MASTER_PORT is '70000'; allowed: an integer from 1 to 65535"},
      {{{"PIPER_PROCESS", "1"}},
       "PIPER_NUM_PROCESSES is not set, although the launcher's others are"},
      {with(kTorchrun, {{"MASTER_ADDR", ""}}),
       "MASTER_ADDR is not set, although the launcher's others are"},
      {with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}}),
       "PIPER_MASTER_ADDRESS is not set: an srun over several nodes needs the name of the one that "
       "rank 0 is on (the job's first, unless a host file says otherwise)"},
  };
  for (const auto& [environment, problem] : rows) CHECK(problem_of(environment) == problem);
}

TEST_CASE("whatever stands in a launcher's variable, it is taken or named in a line") {
  const std::string nonsense[] = {"",
                                  "-1",
                                  "x",
                                  " 1",
                                  "1 ",
                                  "1e3",
                                  "0x1",
                                  "١",
                                  "1\n2",
                                  "\x1b[1m",
                                  "9223372036854775808",
                                  "%s%n",
                                  std::string(400, '9'),
                                  std::string(100'000, 'a')};
  int num_refused = 0;
  for (const Environment& environment : {kPiper, kTorchrun, kSlurm, kOpenMpi, kMpich})
    for (const auto& [name, value] : environment)
      for (const std::string& other : nonsense) {
        CAPTURE(name);
        CAPTURE(other.substr(0, 30));
        const std::string problem = problem_of(with(environment, {{name, other}}));
        if (problem.empty()) continue;
        ++num_refused;
        CHECK(problem.find(name) != std::string::npos);
        CHECK(problem.size() < 1000);
        CHECK(problem.find('\x1b') == std::string::npos);
        CHECK(std::ranges::count(problem, '\n') < 4);
      }
  CHECK(num_refused > 100);
}

}  // namespace
}  // namespace piper::comm
