// piper launch: several processes of one command on this machine, without MPI or another launcher.
#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/standard_input.h>
#include <piper/cli/beside.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/stop_signals.h>
#include <piper/comm/network.h>
#include <piper/comm/secret.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>

namespace piper::cli {
namespace {

struct LaunchFlags {
  int64_t processes = 2;
  double grace_seconds = 15;
};

using Clock = std::chrono::steady_clock;

// Signals that arrive here are for the children.
std::atomic<int> signal_to_pass{0};
extern "C" void on_signal(int signal) { signal_to_pass = signal; }

struct Child {
  int64_t process = 0;
  pid_t pid = -1;
  bool running = false;
};

// How much an exit code tells of why the run failed. A process that hears of another's failure ends
// with 1 like one that fails by itself; one whose input is wrong (2), or that dies, knows the
// cause, whichever of them is the first to end.
int knowledge(int exit_code) {
  if (exit_code == 0) return 0;
  if (exit_code == kExitStopped) return 1;
  return exit_code == 1 ? 2 : 3;
}

class Launcher {
 public:
  Launcher(const LaunchFlags& flags, std::vector<std::string> command)
      : flags_(flags), command_(std::move(command)), secret_(comm::random_secret()) {}
  int run();

 private:
  void start(int64_t process);
  [[noreturn]] void become(int64_t process, pid_t parent);
  void pass(int signal);
  void pause_all();
  void ended(Child& child, int status);
  void press_on();
  int64_t num_running() const {
    return std::ranges::count_if(children_, [](const Child& c) { return c.running; });
  }

  const LaunchFlags flags_;
  const std::vector<std::string> command_;
  const std::string secret_;
  // Process 0 inherits it, so that no other program can take the port meanwhile.
  const comm::Listener listener_ = comm::listen_on(comm::kLoopback, 0);
  std::vector<Child> children_;
  int exit_code_ = 0;
  Clock::time_point failed_at_{};
  int next_signal_ = SIGTERM;  // for those that outlive a failure
};

void Launcher::start(int64_t process) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    throw IoError(
        fmt::format("launch: process {} cannot be started: {}", process, cause_of(errno)));
  if (pid == 0) become(process, parent);
  children_.push_back({process, pid, true});
}

void Launcher::become(int64_t process, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans
  if (::getppid() != parent) ::_exit(1);
  // A group of its own: what a terminal or timeout(1) sends to the launcher's whole group would
  // arrive here twice, once more passed on by the launcher. Not the terminal's foreground, it may
  // still write.
  ::setpgid(0, 0);
  std::signal(SIGTTOU, SIG_IGN);
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("PIPER_PROCESS", std::to_string(process));
  set("PIPER_NUM_PROCESSES", std::to_string(flags_.processes));
  set("PIPER_LOCAL_PROCESS", std::to_string(process));
  set("PIPER_MASTER_ADDRESS", "127.0.0.1");
  set("PIPER_MASTER_PORT", std::to_string(listener_.port));
  set("PIPER_SECRET", secret_);
  ::unsetenv("PIPER_LISTEN_FD");
  if (process == 0) {
    ::fcntl(listener_.fd, F_SETFD, 0);
    set("PIPER_LISTEN_FD", std::to_string(listener_.fd));
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command_)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  say_error(fmt::format("launch: cannot start: {}", std::strerror(errno)));
  ::_exit(1);
}

void Launcher::pass(int signal) {
  for (const Child& child : children_)
    if (child.running) ::kill(child.pid, signal);
}

// Ctrl-Z: all stop, and go on when this process does.
void Launcher::pause_all() {
  pass(SIGSTOP);
  std::raise(SIGSTOP);
  pass(SIGCONT);
}

void Launcher::ended(Child& child, int status) {
  child.running = false;
  const bool killed = WIFSIGNALED(status);
  const int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (code == 0) return;
  if (killed)
    say_error(fmt::format("launch: process {} (pid {}) was ended by signal {} ({})", child.process,
                          child.pid, WTERMSIG(status), ::strsignal(WTERMSIG(status))));
  if (exit_code_ == 0) failed_at_ = Clock::now();
  // What ends by the launcher's own signal is no cause.
  const bool was_pressed = killed && next_signal_ == SIGKILL;
  if (!was_pressed && knowledge(code) > knowledge(exit_code_)) exit_code_ = code;
}

// The others hear of a failure through the control channel and end by themselves; those that don't
// are ended.
void Launcher::press_on() {
  if (exit_code_ == 0 || num_running() == 0) return;
  const std::chrono::duration<double> since = Clock::now() - failed_at_;
  if (since.count() < flags_.grace_seconds) return;
  say_error(fmt::format("launch: {} processes are still there {:.0f} s after the first failure: {}",
                        num_running(), since.count(),
                        next_signal_ == SIGKILL ? "killed" : "told to stop"));
  pass(SIGCONT);
  pass(next_signal_);
  next_signal_ = SIGKILL;
  failed_at_ = Clock::now();
}

int Launcher::run() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGUSR1, SIGTSTP})
    handle_unless_ignored(signal, on_signal);
  for (int64_t p = 0; p < flags_.processes; ++p) start(p);
  ::close(listener_.fd);  // when process 0 closes the port, it is closed
  while (num_running() > 0) {
    if (const int signal = signal_to_pass.exchange(0); signal == SIGTSTP)
      pause_all();
    else if (signal != 0)
      pass(signal);
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
      ::usleep(20'000);
      press_on();
      continue;
    }
    for (Child& child : children_)
      if (child.pid == pid) ended(child, status);
  }
  return exit_code_;
}

int run_launch(const LaunchFlags& flags, std::vector<std::string> command) {
  if (command.empty())
    throw InvalidInput("launch: no command is given; allowed: piper launch -n N train --model ...");
  const bool bench = command.size() > 1 && command[0] == "bench" &&
                     (command[1] == "pipeline" || command[1] == "moe" || command[1] == "alltoall" ||
                      command[1] == "dedup");
  if (command.front() != "train" && command.front() != "eval" && !bench)
    throw InvalidInput(
        fmt::format("launch: '{}' does not run on several processes; allowed: train, eval, bench "
                    "alltoall, bench dedup, bench "
                    "pipeline, bench moe",
                    command.front() == "bench" && command.size() > 1 ? "bench " + command[1]
                                                                     : command.front()));
  program_beside(bench ? "piper-bench" : "piper-train", command.front());  // said once if it is not
  if (std::ranges::count(command, kStandardInput) > 0)
    throw InvalidInput(
        "launch: '-' is standard input, which several processes cannot share; allowed: a file");
  command.insert(command.begin(), "piper");
  return Launcher(flags, std::move(command)).run();
}

}  // namespace

Run add_launch(Subcommand command) {
  auto flags = std::make_shared<LaunchFlags>();
  command.add_option("-n,--processes", flags->processes, "how many, a share of the ranks each")
      .check(integer_in(1, 4096))
      .show_default();
  command
      .add_option("--grace-seconds", flags->grace_seconds,
                  "what the others have to end by themselves after one has failed")
      .check(number_in(0.0, 3600.0))
      .show_default();
  command.take_the_rest_unread();
  command.footer("Example: piper launch -n 4 train --model piper-10m --pp 2 --dp 2 --steps 20");
  return [flags, command] { return run_launch(*flags, command.rest()); };
}

}  // namespace piper::cli
