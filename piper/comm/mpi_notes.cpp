#include <piper/comm/mpi_notes.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace piper::comm {
namespace {

constexpr size_t kNumPosted = 32;
constexpr size_t kMaxLeaving = 4;
// Several notes in a message are at most as long together: what MPIs send at once.
constexpr size_t kTogetherBytes = 4000;

using NoteSize = uint32_t;

}  // namespace

MpiNotes::MpiNotes(MPI_Comm comm, int64_t num_processes, Doorbell& bell, MpiResult& result)
    : comm_(comm),
      bell_(bell),
      result_(result),
      posted_(kNumPosted, MPI_REQUEST_NULL),
      buffers_(kNumPosted, std::vector<std::byte>(kMaxNoteBytes + sizeof(NoteSize))),
      peers_(static_cast<size_t>(num_processes)) {}

void MpiNotes::start() {
  for (size_t i = 0; i < kNumPosted; ++i) post(i);
}

void MpiNotes::post(size_t index) {
  result_.good(MPI_Irecv(buffers_[index].data(), static_cast<int>(buffers_[index].size()), MPI_BYTE,
                         MPI_ANY_SOURCE, kTag, comm_, &posted_[index]));
}

std::vector<std::byte> MpiNotes::pack(std::span<const std::byte> head,
                                      std::span<const std::byte> body) {
  const auto size = static_cast<NoteSize>(head.size() + body.size());
  const std::span<const std::byte> size_bytes = std::as_bytes(std::span(&size, 1));
  std::vector<std::byte> packed;
  packed.reserve(sizeof size + size);
  packed.insert(packed.end(), size_bytes.begin(), size_bytes.end());
  packed.insert(packed.end(), head.begin(), head.end());
  packed.insert(packed.end(), body.begin(), body.end());
  return packed;
}

void MpiNotes::give(int64_t process, std::vector<std::byte> packed) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  if (peer.waiting.empty() && peer.leaving.empty()) busy_.push_back(process);
  peer.waiting.push_back(std::move(packed));
}

bool MpiNotes::send() {
  bool moved = false;
  for (const int64_t process : busy_)
    moved = send_to(process, peers_[static_cast<size_t>(process)]) || moved;
  std::erase_if(busy_, [&](int64_t process) {
    const Peer& peer = peers_[static_cast<size_t>(process)];
    return peer.waiting.empty() && peer.leaving.empty();
  });
  return moved;
}

bool MpiNotes::send_to(int64_t process, Peer& peer) {
  bool moved = false;
  for (;;) {
    for (int done = 1; !peer.leaving.empty();) {
      if (!result_.good(MPI_Test(&peer.leaving.front().request, &done, MPI_STATUS_IGNORE)) ||
          done == 0)
        break;
      peer.leaving.pop_front();
      moved = true;
    }
    if (peer.waiting.empty() || peer.leaving.size() >= kMaxLeaving) return moved;
    peer.leaving.push_back({.message = next_message(peer.waiting)});
    Leaving& leaving = peer.leaving.back();
    result_.good(MPI_Isend(leaving.message.data(), static_cast<int>(leaving.message.size()),
                           MPI_BYTE, static_cast<int>(process), kTag, comm_, &leaving.request));
    bell_.ring(process);
    moved = true;
  }
}

std::vector<std::byte> MpiNotes::next_message(std::deque<std::vector<std::byte>>& waiting) {
  std::vector<std::byte> message = std::move(waiting.front());
  waiting.pop_front();
  while (!waiting.empty() && message.size() + waiting.front().size() <= kTogetherBytes) {
    message.insert(message.end(), waiting.front().begin(), waiting.front().end());
    waiting.pop_front();
  }
  return message;
}

// In the order in which they were posted, which is the order in which messages fill them.
bool MpiNotes::take(const std::function<void(int64_t, std::span<const std::byte>)>& arrived) {
  bool moved = false;
  for (size_t i = 0; i < kNumPosted; ++i) {
    int done = 0, size = 0;
    MPI_Status status;
    if (!result_.good(MPI_Test(&posted_[next_posted_], &done, &status)) || done == 0) break;
    MPI_Get_count(&status, MPI_BYTE, &size);
    moved = true;
    std::span<const std::byte> rest(buffers_[next_posted_].data(), static_cast<size_t>(size));
    while (rest.size() > sizeof(NoteSize)) {
      NoteSize note = 0;
      std::memcpy(&note, rest.data(), sizeof note);
      rest = rest.subspan(sizeof note);
      const size_t bytes = std::min<size_t>(note, rest.size());  // who reads it sees that it is cut
      arrived(status.MPI_SOURCE, rest.first(bytes));
      rest = rest.subspan(bytes);
    }
    post(next_posted_);
    next_posted_ = (next_posted_ + 1) % kNumPosted;
  }
  return moved;
}

void MpiNotes::cancel() {
  for (const int64_t process : busy_)
    for (Leaving& leaving : peers_[static_cast<size_t>(process)].leaving) {
      MPI_Cancel(&leaving.request);
      MPI_Request_free(&leaving.request);
    }
  busy_.clear();
  for (MPI_Request& request : posted_)
    if (request != MPI_REQUEST_NULL) {
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

}  // namespace piper::comm
