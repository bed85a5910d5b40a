// The wire over MPI, as a plug-in (mpi_plugin.h). Uses MPI's C interface only, and of Piper only
// what headers hold, so that it links nothing but MPI.
//
// One thread makes all MPI calls. Notes (mpi_notes.h) and payloads (mpi_payloads.h) are its work;
// this file is how it is told, how it sleeps, and how MPI begins and ends. While messages are on
// their way or expected it looks on for kLook after the last one, giving way to whoever else wants
// the core: waking takes as long. Then it sleeps between looks: tens of microseconds while a
// request is outstanding, up to a millisecond when idle, and not at all when a note or payload is
// posted here, or elsewhere on this host (doorbell.h). With processes on several hosts it looks
// every tenth of a millisecond while a message is expected. A library that calls abort() leaves the
// thread without MPI (mpi_abort.h): it answers its commands and waits for the end.
#include <mpi.h>
#include <piper/base/error.h>
#include <piper/comm/doorbell.h>
#include <piper/comm/mpi_abort.h>
#include <piper/comm/mpi_notes.h>
#include <piper/comm/mpi_payloads.h>
#include <piper/comm/mpi_plugin.h>
#include <piper/comm/mpi_result.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace piper::comm {
namespace {

constexpr std::chrono::microseconds kLook{30};

// MPI_Abort kills all processes at once, and some mpiruns lose what was written just before.
constexpr std::chrono::milliseconds kLastWords{500};

// Whose library has aborted says so only when nobody has named a dead process by then.
constexpr std::chrono::seconds kOthersFirst{2};

// A failed process ends the run, after it and the others have said why.
void abort_at_exit(int status, void*) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, status == 0 ? 1 : status);
}

// No call of MPI would return any more; its launcher ends the others when a process is gone without
// MPI_Finalize.
void leave_without_mpi(int status, void*) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastWords);
  _exit(status == 0 ? 1 : status);
}

class MpiWireThread final : public MpiWire {
 public:
  MpiWireThread() {
    std::promise<void> ready;
    thread_ = std::thread([this, &ready] { run(ready); });
    try {
      ready.get_future().get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~MpiWireThread() override {
    command([this] { ending_ = true; });
    ended_->get_future().wait();
    if (gone_)
      thread_.detach();  // it never returns from the library
    else
      thread_.join();
    if (!finalized_) on_exit(gone_ ? leave_without_mpi : abort_at_exit, nullptr);
  }

  int64_t process() const override { return process_; }
  int64_t num_processes() const override { return num_processes_; }
  bool one_host() const override { return one_host_; }

  std::string broadcast(const std::string& text) override {
    std::promise<std::string> result;
    command([&] { result.set_value(broadcast_now(text)); });
    return result.get_future().get();
  }

  void all_to_all(std::span<const std::byte> sent, std::span<const int> sent_bytes,
                  std::span<std::byte> received, std::span<const int> received_bytes) override {
    const auto places = [](std::span<const int> bytes) {
      std::vector<int> at(bytes.size());
      std::exclusive_scan(bytes.begin(), bytes.end(), at.begin(), 0);
      return at;
    };
    const std::vector<int> sent_at = places(sent_bytes), received_at = places(received_bytes);
    std::promise<int> result;
    command([&] {
      if (gone_) return result.set_value(MPI_ERR_OTHER);
      while (notes_->sending()) notes_->send();  // their senders take them for sent
      result.set_value(MPI_Alltoallv(sent.data(), sent_bytes.data(), sent_at.data(), MPI_BYTE,
                                     received.data(), received_bytes.data(), received_at.data(),
                                     MPI_BYTE, comm_));
    });
    if (result.get_future().get() != MPI_SUCCESS) throw CommError("MPI_Alltoallv failed");
  }

  void start(WireEvents& events) override {
    std::promise<void> started;
    command([&] {
      events_ = &events;
      notes_->start();
      started.set_value();
    });
    started.get_future().get();
  }

  size_t max_note_bytes() const override { return MpiNotes::kMaxNoteBytes; }

  void send_note(int64_t process, std::span<const std::byte> head,
                 std::span<const std::byte> body) override {
    command([this, process, note = MpiNotes::pack(head, body)]() mutable {
      if (!quiet()) notes_->give(process, std::move(note));
    });
  }

  void send_payload(int64_t process, uint64_t id, std::span<const std::byte> bytes) override {
    command([this, process, id, bytes] {
      if (!quiet()) in_mpi([&] { payloads_->send(process, id, bytes); });
    });
  }

  void expect_payload(int64_t process, uint64_t id, std::span<std::byte> bytes) override {
    command([this, process, id, bytes] {
      if (!quiet()) in_mpi([&] { payloads_->expect(process, id, bytes); });
    });
  }

  bool cancel_payload(int64_t process, uint64_t id) override {
    command([this, process, id] {
      if (!gone_) in_mpi([&] { payloads_->cancel(process, id); });
    });
    return true;
  }

  void abandon() override {
    command([this] {
      // Without a further call of MPI nothing moves any more. After a peaceful end there is nothing
      // to give up.
      abandoned_ = !peaceful_;
      if (events_ != nullptr) events_->abandoned();
    });
  }

  void close() override {
    command([this] { peaceful_ = !abandoned_; });
  }

 private:
  void command(std::function<void()> action) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(action));
    }
    bell_.ring();
  }

  template <typename Call>
  static void in_mpi(const Call& call) {
    const MpiAbort::Catching catching(true);
    call();
  }

  void run(std::promise<void>& ready) {
    try {
      initialise();
      ready.set_value();
    } catch (...) {
      ready.set_exception(std::current_exception());
      return;
    }
    const std::shared_ptr<std::promise<void>> ended = ended_;  // outlives this object
    const MpiAbort abort([this] { go_on_without_mpi(); });
    int64_t num_idle = 0;
    while (!ending_) {
      const uint32_t rings = bell_.count();
      bool moved = run_commands();
      if (events_ != nullptr && !abandoned_ && !peaceful_) moved = look() || moved;
      num_idle = moved ? 0 : num_idle + 1;
      if (!moved && !ending_) sleep(num_idle, rings);
    }
    if (peaceful_) finalize();
    ended->set_value();
  }

  // Called where the library has aborted; only commands still come.
  void go_on_without_mpi() {
    const std::shared_ptr<std::promise<void>> ended = ended_;  // outlives this object
    gone_ = true;
    const auto since = std::chrono::steady_clock::now();
    for (bool told = false; !ending_;) {
      const uint32_t rings = bell_.count();
      const bool moved = run_commands();
      if (!told && !abandoned_ && std::chrono::steady_clock::now() - since > kOthersFirst) {
        told = true;
        events_->process_lost(process_, "its MPI library ended it; what it said stands above");
      }
      if (!moved && !ending_) bell_.wait(rings, std::chrono::milliseconds(1));
    }
    ended->set_value();
  }

  void initialise() {
    prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default would stretch short sleeps by 50 us
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
      throw CommError("MPI_Init_thread failed");
    if (provided < MPI_THREAD_FUNNELED) throw CommError("this MPI does not allow threads");
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int rank = 0, size = 0, on_host = 0;
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_host);
    process_ = rank;
    num_processes_ = size;
    one_host_ = on_host == size;
    if (one_host_) share_bell(host);
    MPI_Comm_free(&host);
    notes_ = std::make_unique<MpiNotes>(comm_, num_processes_, bell_, result_);
    payloads_ = std::make_unique<MpiPayloads>(comm_, num_processes_, bell_, result_);
  }

  // A cache line of shared memory for each process. Where the MPI has none, the thread goes on
  // looking.
  void share_bell(MPI_Comm host) {
    constexpr MPI_Aint kLine = 64;
    void* mine = nullptr;
    if (MPI_Win_allocate_shared(kLine, 1, MPI_INFO_NULL, host, &mine, &window_) != MPI_SUCCESS) {
      window_ = MPI_WIN_NULL;
      return;
    }
    new (mine) Doorbell::Word(0);
    std::vector<Doorbell::Word*> words;
    for (int process = 0; process < num_processes_; ++process) {
      MPI_Aint size = 0;
      int unit = 0;
      void* word = nullptr;
      MPI_Win_shared_query(window_, process, &size, &unit, &word);
      words.push_back(static_cast<Doorbell::Word*>(word));
    }
    MPI_Barrier(host);  // no ring before every word is there
    bell_.share(std::move(words), process_);
  }

  std::string broadcast_now(std::string text) {
    uint64_t size = text.size();
    broadcast_bytes(&size, sizeof size);
    text.resize(size);
    broadcast_bytes(text.data(), size);
    return text;
  }

  void broadcast_bytes(void* bytes, size_t size) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(bytes, static_cast<int>(size), MPI_BYTE, 0, comm_, &request);
    for (int done = 0; done == 0;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  bool run_commands() {
    {
      const std::lock_guard lock(mutex_);
      std::move(commands_.begin(), commands_.end(), std::back_inserter(running_));
      commands_.clear();
    }
    const bool any = !running_.empty();
    while (!running_.empty()) {
      // Where one never returns, go_on_without_mpi() goes on with the rest.
      const std::function<void()> action = std::move(running_.front());
      running_.pop_front();
      action();
    }
    return any;
  }

  // Until the bell is rung once more than `rings` times, at most.
  void sleep(int64_t num_idle, uint32_t rings) {
    if (num_idle == 1) idle_since_ = std::chrono::steady_clock::now();
    if (busy() && std::chrono::steady_clock::now() - idle_since_ < kLook) {
      std::this_thread::yield();
      return;
    }
    bell_.wait(rings, std::chrono::microseconds(longest_sleep_us(num_idle)));
  }
  int64_t longest_sleep_us(int64_t num_idle) const {
    constexpr int64_t kIdle = 1000, kBusy = 100, kShortest = 20;
    if (!outstanding() && bell_.shared()) return kIdle;
    return std::min(busy() ? kBusy : kIdle, kShortest << std::min<int64_t>(num_idle / 16, 6));
  }
  // Nothing is posted any more.
  bool quiet() const { return abandoned_ || gone_; }
  bool outstanding() const { return notes_->sending() || !payloads_->empty(); }
  bool busy() const { return outstanding() || (events_ != nullptr && events_->expects_messages()); }

  // Whether anything has moved.
  bool look() {
    const MpiAbort::Catching in_mpi(true);
    bool moved = notes_->send();
    moved = notes_->take([this](int64_t process, std::span<const std::byte> note) {
      const MpiAbort::Catching not_in_mpi(false);
      events_->note_arrived(process, note);
    }) || moved;
    return payloads_->look([this](const MpiPayloads::Done& done) {
      const MpiAbort::Catching not_in_mpi(false);
      if (done.sent)
        events_->payload_sent(done.process, done.id);
      else
        events_->payload_received(done.process, done.id);
    }) || moved;
  }

  void finalize() {
    notes_->cancel();  // what all have left unread, if any
    payloads_->cancel_all();
    bell_.share({}, 0);
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    MPI_Comm_free(&comm_);
    MPI_Finalize();
    finalized_ = true;
  }

  // Other threads' part.
  std::mutex mutex_;
  std::deque<std::function<void()>> commands_;

  Doorbell bell_;

  std::deque<std::function<void()>> running_;  // commands that the thread has taken

  // The thread's own; process_, num_processes_ and one_host_ do not change after the constructor.
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;  // of the bells
  int64_t process_ = 0, num_processes_ = 1;
  bool one_host_ = true;
  WireEvents* events_ = nullptr;
  MpiResult result_{[this](const std::string& why) {
    if (events_ != nullptr && !abandoned_) events_->process_lost(process_, why);
  }};
  std::unique_ptr<MpiNotes> notes_;
  std::unique_ptr<MpiPayloads> payloads_;
  std::chrono::steady_clock::time_point idle_since_;
  bool abandoned_ = false, peaceful_ = false, ending_ = false, finalized_ = false;
  bool gone_ = false;  // the library has aborted
  std::shared_ptr<std::promise<void>> ended_ = std::make_shared<std::promise<void>>();
  std::thread thread_;  // last
};

}  // namespace
}  // namespace piper::comm

extern "C" piper::comm::MpiWire* piper_make_mpi_wire() { return new piper::comm::MpiWireThread(); }
