// The wire over MPI, as a plug-in (mpi_plugin.h). Uses MPI's C interface only, and of Piper only
// what headers hold, so that it links nothing but MPI.
//
// One thread makes all MPI calls: Isend, Irecv, Test. Notes are messages with tag 0 into a ring of
// posted receives; a payload goes from buffer to buffer with a tag made from its id, in pieces of at
// most kPieceBytes. Between looks the thread sleeps: tens of microseconds while a request is outstanding, up to a millisecond
// when idle, and not at all when a note or payload is posted here, or elsewhere on this host (doorbell.h). With
// processes on several hosts it looks every tenth of a millisecond while a message is expected.
#include <mpi.h>
#include <piper/base/error.h>
#include <piper/comm/doorbell.h>
#include <piper/comm/mpi_plugin.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::comm {
namespace {

constexpr size_t kNoteBytes = 8192;
constexpr size_t kNumPosted = 32;  // receives of notes
constexpr size_t kPieceBytes = size_t{1} << 30;
constexpr int kNoteTag = 0;

// MPI_Abort kills all processes at once, and some mpiruns lose what was written just before.
constexpr std::chrono::milliseconds kLastWords{500};

// A failed process ends the run, after it and the others have said why.
void abort_at_exit(int status, void*) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, status == 0 ? 1 : status);
}

class MpiWireThread final : public MpiWire {
 public:
  MpiWireThread() {
    std::promise<void> ready;
    thread_ = std::thread([this, &ready] { run(ready); });
    ready.get_future().get();
  }

  ~MpiWireThread() override {
    command([this] { ending_ = true; });
    thread_.join();
    if (!finalized_) on_exit(abort_at_exit, nullptr);
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
      for (size_t i = 0; i < kNumPosted; ++i) post_note_receive(i);
      started.set_value();
    });
    started.get_future().get();
  }

  size_t max_note_bytes() const override { return kNoteBytes; }

  void send_note(int64_t process, std::span<const std::byte> head,
                 std::span<const std::byte> body) override {
    std::vector<std::byte> note(head.begin(), head.end());
    note.insert(note.end(), body.begin(), body.end());
    command([this, process, note = std::move(note)]() mutable {
      if (!abandoned_) send_now(process, std::move(note));
    });
  }

  void send_payload(int64_t process, uint64_t id, std::span<const std::byte> bytes) override {
    command([this, process, id, bytes] {
      pieces(process, id, bytes.size(), true, [&](size_t at, int size, MPI_Request* request) {
        return MPI_Isend(bytes.data() + at, size, MPI_BYTE, static_cast<int>(process), tag_of(id),
                         comm_, request);
      });
    });
  }

  void expect_payload(int64_t process, uint64_t id, std::span<std::byte> bytes) override {
    command([this, process, id, bytes] {
      pieces(process, id, bytes.size(), false, [&](size_t at, int size, MPI_Request* request) {
        return MPI_Irecv(bytes.data() + at, size, MPI_BYTE, static_cast<int>(process), tag_of(id),
                         comm_, request);
      });
    });
  }

  void cancel_payload(int64_t process, uint64_t id) override {
    command([this, process, id] {
      for (size_t i = requests_.size(); i-- > 0;)
        if (!uses_[i].sends && uses_[i].process == process && uses_[i].id == id &&
            uses_[i].note.empty()) {
          MPI_Cancel(&requests_[i]);
          MPI_Request_free(&requests_[i]);
          drop(i);
        }
      left_.erase({false, process, id});
    });
  }

  void abandon() override {
    command([this] {
      // Without a further call of MPI nothing moves any more. After a peaceful end there is nothing to give up.
      abandoned_ = !peaceful_;
      if (events_ != nullptr) events_->abandoned();
    });
  }

  void close() override {
    command([this] { peaceful_ = !abandoned_; });
  }

 private:
  struct Use {  // of a request
    bool sends = false;
    int64_t process = 0;
    uint64_t id = 0;
    std::vector<std::byte> note;  // empty: a piece of a payload
  };
  using PayloadKey = std::tuple<bool, int64_t, uint64_t>;  // sends, process, id

  void command(std::function<void()> action) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(action));
    }
    bell_.ring();
  }

  void run(std::promise<void>& ready) {
    try {
      initialise();
      ready.set_value();
    } catch (...) {
      ready.set_exception(std::current_exception());
      return;
    }
    int64_t num_idle = 0;
    while (!ending_) {
      const uint32_t rings = bell_.count();
      bool moved = run_commands();
      if (events_ != nullptr && !abandoned_ && !peaceful_) moved = look() || moved;
      num_idle = moved ? 0 : num_idle + 1;
      if (!moved && !ending_) sleep(num_idle, rings);
    }
    if (peaceful_) finalize();
  }

  void initialise() {
    prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default would stretch short sleeps by 50 us
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
      throw CommError("MPI_Init_thread failed");
    if (provided < MPI_THREAD_FUNNELED) throw CommError("this MPI does not allow threads");
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int rank = 0, size = 0, on_host = 0, found = 0;
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_host);
    void* tag_limit = nullptr;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found);
    if (found != 0) tag_limit_ = static_cast<uint64_t>(*static_cast<int*>(tag_limit));
    process_ = rank;
    num_processes_ = size;
    one_host_ = on_host == size;
    if (one_host_) share_bell(host);
    MPI_Comm_free(&host);
    posted_.resize(kNumPosted, MPI_REQUEST_NULL);
    buffers_.resize(kNumPosted, std::vector<std::byte>(kNoteBytes));
  }

  // A cache line of shared memory for each process. Where the MPI has none, the thread goes on looking.
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
    std::deque<std::function<void()>> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (const auto& command : commands) command();
    return !commands.empty();
  }

  // Until the bell is rung once more than `rings` times, at most.
  void sleep(int64_t num_idle, uint32_t rings) {
    bell_.wait(rings, std::chrono::microseconds(longest_sleep_us(num_idle)));
  }
  int64_t longest_sleep_us(int64_t num_idle) const {
    constexpr int64_t kIdle = 1000, kBusy = 100, kShortest = 20;
    if (requests_.empty() && bell_.shared()) return kIdle;
    const bool busy = !requests_.empty() || (events_ != nullptr && events_->expects_messages());
    return std::min(busy ? kBusy : kIdle, kShortest << std::min<int64_t>(num_idle / 16, 6));
  }

  // Whether anything has moved.
  bool look() {
    const bool notes = look_for_notes();
    return look_at_requests() || notes;
  }

  // In the order in which they were posted, which is the order in which notes fill them.
  bool look_for_notes() {
    bool moved = false;
    for (size_t i = 0; i < kNumPosted && !abandoned_; ++i) {
      int done = 0, size = 0;
      MPI_Status status;
      if (!good(MPI_Test(&posted_[next_posted_], &done, &status)) || done == 0) break;
      MPI_Get_count(&status, MPI_BYTE, &size);
      moved = true;
      events_->note_arrived(status.MPI_SOURCE,
                            std::span(buffers_[next_posted_]).first(static_cast<size_t>(size)));
      post_note_receive(next_posted_);
      next_posted_ = (next_posted_ + 1) % kNumPosted;
    }
    return moved;
  }

  bool look_at_requests() {
    if (requests_.empty() || abandoned_) return false;
    done_.resize(requests_.size());
    int num_done = 0;
    if (!good(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done,
                           done_.data(), MPI_STATUSES_IGNORE)))
      return false;
    if (num_done == MPI_UNDEFINED) num_done = 0;
    std::sort(done_.begin(), done_.begin() + num_done, std::greater<>());
    for (int i = 0; i < num_done; ++i) {
      const Use use = std::move(uses_[done_[i]]);
      drop(done_[i]);
      if (use.note.empty()) end_piece(use);
    }
    return num_done > 0;
  }

  void end_piece(const Use& use) {
    const auto place = left_.find({use.sends, use.process, use.id});
    if (--place->second > 0) return;
    left_.erase(place);
    if (use.sends)
      events_->payload_sent(use.process, use.id);
    else
      events_->payload_received(use.process, use.id);
  }

  void post_note_receive(size_t index) {
    good(MPI_Irecv(buffers_[index].data(), kNoteBytes, MPI_BYTE, MPI_ANY_SOURCE, kNoteTag, comm_,
                   &posted_[index]));
  }

  void send_now(int64_t process, std::vector<std::byte> note) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (good(MPI_Isend(note.data(), static_cast<int>(note.size()), MPI_BYTE,
                       static_cast<int>(process), kNoteTag, comm_, &request)))
      keep(request, {true, process, 0, std::move(note)});
    bell_.ring(process);
  }

  template <class Post>
  void pieces(int64_t process, uint64_t id, size_t size, bool sends, const Post& post) {
    if (abandoned_) return;
    const size_t count = std::max<size_t>(1, (size + kPieceBytes - 1) / kPieceBytes);
    left_[{sends, process, id}] = count;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = i * kPieceBytes;
      MPI_Request request = MPI_REQUEST_NULL;
      if (!good(post(at, static_cast<int>(std::min(kPieceBytes, size - at)), &request))) return;
      keep(request, {sends, process, id, {}});
    }
    if (sends) bell_.ring(process);
  }

  void keep(MPI_Request request, Use use) {
    requests_.push_back(request);
    uses_.push_back(std::move(use));
  }

  void drop(size_t index) {
    std::swap(requests_[index], requests_.back());
    std::swap(uses_[index], uses_.back());
    requests_.pop_back();
    uses_.pop_back();
  }

  int tag_of(uint64_t id) const { return static_cast<int>(1 + id % (tag_limit_ - 1)); }

  // Tells an error, once.
  bool good(int code) {
    if (code == MPI_SUCCESS) return true;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int size = 0;
    MPI_Error_string(code, text.data(), &size);
    if (events_ != nullptr && !abandoned_)
      events_->process_lost(process_, std::string("MPI: ") + text.data());
    return false;
  }

  void finalize() {
    while (!requests_.empty()) {  // notes that all have left unread, if any
      MPI_Cancel(&requests_.back());
      MPI_Request_free(&requests_.back());
      drop(requests_.size() - 1);
    }
    for (MPI_Request& request : posted_)
      if (request != MPI_REQUEST_NULL) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      }
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

  // The thread's own; process_, num_processes_ and one_host_ do not change after the constructor.
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;  // of the bells
  int64_t process_ = 0, num_processes_ = 1;
  bool one_host_ = true;
  uint64_t tag_limit_ = 32767;
  WireEvents* events_ = nullptr;
  std::vector<MPI_Request> posted_;  // receives of notes, a ring
  std::vector<std::vector<std::byte>> buffers_;
  size_t next_posted_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Use> uses_;  // of requests_
  std::vector<int> done_;
  std::map<PayloadKey, size_t> left_;  // pieces not yet done
  bool abandoned_ = false, peaceful_ = false, ending_ = false, finalized_ = false;
  std::thread thread_;  // last
};

}  // namespace
}  // namespace piper::comm

extern "C" piper::comm::MpiWire* piper_make_mpi_wire() { return new piper::comm::MpiWireThread(); }
