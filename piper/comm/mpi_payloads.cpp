#include <piper/comm/mpi_payloads.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace piper::comm {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 30;
constexpr size_t kMaxPosted = 64;
constexpr size_t kWindow = 256;

}  // namespace

MpiPayloads::MpiPayloads(MPI_Comm comm, int64_t num_processes, Doorbell& bell, MpiResult& result)
    : comm_(comm),
      bell_(bell),
      result_(result),
      peers_(static_cast<size_t>(num_processes)),
      done_(kWindow) {
  void* tag_limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found);
  if (found != 0) tag_limit_ = static_cast<uint64_t>(*static_cast<int*>(tag_limit));
}

void MpiPayloads::send(int64_t process, uint64_t id, std::span<const std::byte> bytes) {
  const Transfer transfer{{true, process, id}, bytes.data(), nullptr, bytes.size()};
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (peer.num_posted < kMaxPosted)
    start_send(transfer);
  else
    peer.waiting.push_back(transfer);
}

void MpiPayloads::start_send(const Transfer& transfer) {
  ++peers_[static_cast<size_t>(transfer.what.process)].num_posted;
  keep(transfer);
  bell_.ring(transfer.what.process);
}

void MpiPayloads::expect(int64_t process, uint64_t id, std::span<std::byte> bytes) {
  keep({{false, process, id}, nullptr, bytes.data(), bytes.size()});
}

void MpiPayloads::keep(Transfer transfer) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (!post(transfer, request)) return;
  requests_.push_back(request);
  transfers_.push_back(transfer);
}

// The next piece.
bool MpiPayloads::post(Transfer& transfer, MPI_Request& request) {
  const size_t size = std::min(transfer.left, kPieceBytes);
  const int process = static_cast<int>(transfer.what.process), tag = tag_of(transfer.what.id);
  const int code = transfer.what.sent ? MPI_Isend(transfer.from, static_cast<int>(size), MPI_BYTE,
                                                  process, tag, comm_, &request)
                                      : MPI_Irecv(transfer.to, static_cast<int>(size), MPI_BYTE,
                                                  process, tag, comm_, &request);
  transfer.left -= size;
  if (transfer.what.sent)
    transfer.from += size;
  else
    transfer.to += size;
  return result_.good(code);
}

bool MpiPayloads::look(const std::function<void(const Done&)>& done) {
  const size_t size = requests_.size();
  for (size_t looked = 0; looked < size;) {
    if (at_ >= requests_.size()) at_ = 0;
    const size_t count = std::min(kWindow, requests_.size() - at_);
    int num_done = 0;
    if (!result_.good(MPI_Testsome(static_cast<int>(count), &requests_[at_], &num_done,
                                   done_.data(), MPI_STATUSES_IGNORE)))
      return false;
    if (num_done != MPI_UNDEFINED && num_done > 0) {
      // From the last one on, since what is at the end takes the place of what is dropped.
      std::sort(done_.begin(), done_.begin() + num_done, std::greater<>());
      for (int i = 0; i < num_done; ++i) end(at_ + static_cast<size_t>(done_[i]), done);
      return true;
    }
    at_ += count;
    looked += count;
  }
  return false;
}

void MpiPayloads::end(size_t index, const std::function<void(const Done&)>& done) {
  if (transfers_[index].left > 0) {
    if (!post(transfers_[index], requests_[index])) drop(index);
    return;
  }
  const Done what = transfers_[index].what;
  drop(index);
  if (what.sent) {
    Peer& peer = peers_[static_cast<size_t>(what.process)];
    --peer.num_posted;
    if (!peer.waiting.empty()) {
      start_send(peer.waiting.front());
      peer.waiting.pop_front();
    }
  }
  done(what);
}

void MpiPayloads::drop(size_t index) {
  requests_[index] = requests_.back();
  transfers_[index] = transfers_.back();
  requests_.pop_back();
  transfers_.pop_back();
}

void MpiPayloads::cancel(int64_t process, uint64_t id) {
  for (size_t i = requests_.size(); i-- > 0;)
    if (!transfers_[i].what.sent && transfers_[i].what.process == process &&
        transfers_[i].what.id == id) {
      MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
      drop(i);
    }
}

void MpiPayloads::cancel_all() {
  for (MPI_Request& request : requests_) {
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  requests_.clear();
  transfers_.clear();
  for (Peer& peer : peers_) peer.waiting.clear();
}

}  // namespace piper::comm
