#include <piper/comm/tcp_connection.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <bit>
#include <cerrno>
#include <cstring>

namespace piper::comm::internal {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;
constexpr size_t kTurnBytes = size_t{1}
                              << 20;  // written, or read, before the other direction's turn
constexpr size_t kInputBytes = size_t{64} << 10;
constexpr uint32_t kNote = 1, kPayload = 2;

iovec piece(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

// Bytes taken by the socket; 0 when it takes none now, or is broken (the reader notices that).
size_t send_now(int fd, std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  ssize_t size = 0;
  do size = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (size < 0 && errno == EINTR);
  return size < 0 ? 0 : static_cast<size_t>(size);
}

}  // namespace

TcpConnection::TcpConnection(int64_t process, asio::ip::tcp::socket socket)
    : process_(process), socket_(std::move(socket)), input_(kInputBytes) {
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

bool TcpConnection::idle() const { return notes_.empty() && payloads_.empty() && !chunk_.active; }

void TcpConnection::send_note(std::span<const std::byte> head, std::span<const std::byte> body) {
  const ChunkHead frame{static_cast<uint32_t>(head.size() + body.size()), kNote, 0};
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  std::array pieces{piece(&frame, sizeof frame), piece(head.data(), head.size()),
                    piece(body.data(), body.size())};
  size_t sent = idle() ? send_now(socket_.native_handle(), pieces) : 0;
  if (sent == sizeof frame + frame.size) return;
  for (const iovec& part : pieces) {
    const size_t skipped = std::min(sent, part.iov_len);
    const auto* data = static_cast<const std::byte*>(part.iov_base);
    notes_.insert(notes_.end(), data + skipped, data + part.iov_len);
    sent -= skipped;
  }
  want_to_write();
}

void TcpConnection::send_payload(uint64_t id, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  payloads_.push_back({id, bytes});
  want_to_write();
}

void TcpConnection::expect_payload(uint64_t id, std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (!closed_) expected_[id] = {bytes, 0};
}

bool TcpConnection::cancel_payload(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto place = expected_.find(id);
  if (place == expected_.end()) return true;
  if (place->second.num_received > 0) return false;  // incoming_ may point into its buffer
  expected_.erase(place);
  return true;
}

void TcpConnection::want_to_write() {
  if (writer_waits_) return;
  writer_waits_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->on_writable(); });
}

void TcpConnection::on_writable() {
  std::vector<uint64_t> sent;
  {
    const std::lock_guard lock(mutex_);
    writer_waits_ = false;
    if (closed_) return;
  }
  Progress progress = Progress::kMore;
  for (size_t turn = 0; turn < kTurnBytes / kChunkBytes && progress == Progress::kMore; ++turn) {
    const std::lock_guard lock(mutex_);
    progress = write_once(sent);
  }
  if (progress != Progress::kDrained) {
    const std::lock_guard lock(mutex_);
    if (!closed_ && !writer_waits_) {
      writer_waits_ = true;
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const asio::error_code& error) {
                           if (!error) self->on_writable();
                         });
    }
  }
  for (const uint64_t id : sent) events_->payload_sent(process_, id);
}

TcpConnection::Progress TcpConnection::write_once(std::vector<uint64_t>& sent) {
  if (closed_) return Progress::kDrained;
  if (!chunk_.active && !notes_.empty()) return write_notes();
  if (!chunk_.active && payloads_.empty()) return Progress::kDrained;
  if (!chunk_.active) begin_chunk();
  return write_chunk(sent);
}

TcpConnection::Progress TcpConnection::write_notes() {
  std::array pieces{piece(notes_.data() + num_notes_sent_, notes_.size() - num_notes_sent_)};
  num_notes_sent_ += send_now(socket_.native_handle(), pieces);
  if (num_notes_sent_ < notes_.size()) return Progress::kBlocked;
  notes_.clear();
  num_notes_sent_ = 0;
  return Progress::kMore;
}

void TcpConnection::begin_chunk() {
  Outgoing payload = payloads_.front();
  payloads_.pop_front();
  const size_t size = std::min(kChunkBytes, payload.rest.size());
  chunk_ = {{static_cast<uint32_t>(size), kPayload, payload.id},
            0,
            payload.rest.first(size),
            size == payload.rest.size(),
            true};
  payload.rest = payload.rest.subspan(size);
  if (!chunk_.last) payloads_.push_back(payload);
}

TcpConnection::Progress TcpConnection::write_chunk(std::vector<uint64_t>& sent) {
  const size_t head_left = sizeof chunk_.head - chunk_.head_sent;
  std::array pieces{
      piece(reinterpret_cast<const std::byte*>(&chunk_.head) + chunk_.head_sent, head_left),
      piece(chunk_.rest.data(), chunk_.rest.size())};
  const size_t size = send_now(socket_.native_handle(), pieces);
  const size_t of_head = std::min(size, head_left);
  chunk_.head_sent += of_head;
  chunk_.rest = chunk_.rest.subspan(size - of_head);
  if (chunk_.head_sent < sizeof chunk_.head || !chunk_.rest.empty()) return Progress::kBlocked;
  chunk_.active = false;
  if (chunk_.last) sent.push_back(chunk_.head.id);
  return Progress::kMore;
}

void TcpConnection::start(WireEvents& events) {
  events_ = &events;
  wait_readable();
}

void TcpConnection::wait_readable() {
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const asio::error_code& error) {
                       if (!error) self->on_readable();
                     });
}

void TcpConnection::on_readable() {
  for (size_t turn = 0; turn < kTurnBytes / kInputBytes; ++turn)
    if (!read_once()) break;
  if (socket_.is_open()) wait_readable();
}

// Reads from the socket once. What is not in input_ yet of a chunk goes straight to its place.
bool TcpConnection::read_once() {
  std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  std::array pieces{piece(incoming_.rest.data(), incoming_.rest.size()),
                    piece(input_.data() + end_, input_.size() - end_)};
  const size_t wanted = pieces[0].iov_len + pieces[1].iov_len;
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t size = recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) {
    lose(size == 0 ? "the connection was closed" : std::strerror(errno));
    return false;
  }
  const size_t direct = std::min(static_cast<size_t>(size), incoming_.rest.size());
  end_ += static_cast<size_t>(size) - direct;
  take(direct);
  return parse() && static_cast<size_t>(size) == wanted;
}

// Notes `size` more bytes of the chunk being read.
void TcpConnection::take(size_t size) {
  incoming_.rest = incoming_.rest.subspan(size);
  if (in_chunk_ && incoming_.rest.empty()) end_chunk();
}

bool TcpConnection::parse() {
  while (!in_chunk_) {
    ChunkHead head;
    const size_t held = end_ - begin_;
    if (held < sizeof head) return true;
    std::memcpy(&head, input_.data() + begin_, sizeof head);
    if (head.kind == kPayload) {
      begin_ += sizeof head;
      if (!begin_payload(head)) return false;
      continue;
    }
    if (head.kind != kNote || head.size > kTcpNoteBytes) {
      lose("what came is no note");
      return false;
    }
    if (held < sizeof head + head.size) {
      if (input_.size() < sizeof head + head.size)
        input_.resize(std::bit_ceil(sizeof head + head.size));
      return true;
    }
    const std::span<const std::byte> note(input_.data() + begin_ + sizeof head, head.size);
    begin_ += sizeof head + head.size;
    events_->note_arrived(process_, note);
    if (!socket_.is_open()) return false;
  }
  return true;
}

bool TcpConnection::begin_payload(const ChunkHead& head) {
  {
    const std::lock_guard lock(mutex_);
    const auto place = expected_.find(head.id);
    if (place == expected_.end() ||
        head.size > place->second.bytes.size() - place->second.num_received) {
      incoming_ = {};
    } else {
      Expected& expected = place->second;
      incoming_ = {head.id, expected.bytes.subspan(expected.num_received, head.size)};
      expected.num_received += head.size;
      in_chunk_ = true;
    }
  }
  if (!in_chunk_) {
    lose("a payload came that nobody expects");
    return false;
  }
  const size_t held = std::min(end_ - begin_, incoming_.rest.size());
  if (held > 0) std::memcpy(incoming_.rest.data(), input_.data() + begin_, held);
  begin_ += held;
  take(held);
  return true;
}

void TcpConnection::end_chunk() {
  in_chunk_ = false;
  const uint64_t id = incoming_.id;
  incoming_ = {};
  {
    const std::lock_guard lock(mutex_);
    const auto place = expected_.find(id);
    if (place == expected_.end() || place->second.num_received < place->second.bytes.size()) return;
    expected_.erase(place);
  }
  events_->payload_received(process_, id);
}

void TcpConnection::lose(const std::string& why) {
  close();
  events_->process_lost(process_, why);
}

void TcpConnection::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
  notes_.clear();
  payloads_.clear();
  chunk_ = {};
  expected_.clear();
  incoming_ = {};
  in_chunk_ = false;
}

}  // namespace piper::comm::internal
