#include <piper/comm/mpi_abort.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace piper::comm {
namespace {

thread_local const std::function<void()>* what_to_do = nullptr;
thread_local bool caught = false;

// abort() raises the signal in its own thread and holds no lock meanwhile: ordinary code may run
// here.
void on_abort(int) {
  if (what_to_do != nullptr && caught) {
    caught = false;
    (*what_to_do)();
    for (;;) pause();
  }
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

}  // namespace

MpiAbort::MpiAbort(std::function<void()> go_on) {
  what_to_do = new std::function<void()>(std::move(go_on));
  struct sigaction action {};
  action.sa_handler = on_abort;
  sigemptyset(&action.sa_mask);
  sigaction(SIGABRT, &action, nullptr);
}

MpiAbort::~MpiAbort() { delete std::exchange(what_to_do, nullptr); }

MpiAbort::Catching::Catching(bool on) : before_(std::exchange(caught, on)) {}
MpiAbort::Catching::~Catching() { caught = before_; }

}  // namespace piper::comm
