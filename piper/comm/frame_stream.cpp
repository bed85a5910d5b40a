#include <piper/base/error.h>
#include <piper/comm/frame_stream.h>

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/write.hpp>
#include <cstring>

namespace piper::comm::internal {
namespace {

constexpr size_t kMinRoom = 4096;

}  // namespace

FrameStream::FrameStream(asio::ip::tcp::socket socket, size_t limit)
    : socket_(std::move(socket)), limit_(limit) {
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void FrameStream::start(OnFrame on_frame, OnEnd on_end) {
  listen(std::move(on_frame), std::move(on_end));
  read();
}

void FrameStream::listen(OnFrame on_frame, OnEnd on_end) {
  on_frame_ = std::move(on_frame);
  on_end_ = std::move(on_end);
}

// The buffer grows by what has arrived, never by what a prefix announces.
void FrameStream::read() {
  if (buffer_.size() < num_held_ + kMinRoom)
    buffer_.resize(std::max(2 * num_held_, num_held_ + kMinRoom));
  const auto room = asio::buffer(buffer_.data() + num_held_, buffer_.size() - num_held_);
  socket_.async_read_some(
      room, [self = shared_from_this()](const asio::error_code& error, size_t size) {
        if (self->closed_) return;
        if (error)
          return self->end(error == asio::error::eof ? "the other side closed the connection"
                                                     : error.message());
        self->num_held_ += size;
        if (self->parse()) self->read();
      });
}

bool FrameStream::parse() {
  size_t used = 0;
  for (;;) {
    const ParsedFrame parsed =
        parse_frame(std::span(buffer_).subspan(used, num_held_ - used), limit_);
    if (parsed.status == ParsedFrame::Status::kIncomplete) break;
    if (parsed.status == ParsedFrame::Status::kBad) {
      garbled_ = true;
      end("what came is no frame");
      return false;
    }
    const OnFrame on_frame = on_frame_;  // it may be replaced
    used += parsed.num_bytes;
    on_frame(parsed.frame);
    if (closed_) {
      num_held_ -= std::min(num_held_, used);
      return false;
    }
  }
  std::memmove(buffer_.data(), buffer_.data() + used, num_held_ - used);
  num_held_ -= used;
  return true;
}

void FrameStream::send(FrameKind kind, std::span<const std::byte> body) {
  if (closed_ || closing_) return;
  queue_.push_back(make_frame(kind, body));
  if (queue_.size() == 1) write();
}

void FrameStream::write() {
  asio::async_write(socket_, asio::buffer(queue_.front()),
                    [self = shared_from_this()](const asio::error_code& error, size_t) {
                      if (self->closed_) return;
                      if (error) return self->end(error.message());
                      self->queue_.pop_front();
                      if (!self->queue_.empty())
                        self->write();
                      else if (self->closing_)
                        self->close();
                    });
}

void FrameStream::end(const std::string& why) {
  const OnEnd on_end = std::move(on_end_);
  close();
  if (on_end) on_end(why);
}

void FrameStream::close() {
  if (closed_) return;
  closed_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
  queue_.clear();
  on_frame_ = nullptr;
  on_end_ = nullptr;
}

void FrameStream::close_after_sending() {
  if (queue_.empty()) return close();
  closing_ = true;
  listen([](const Frame&) {}, nullptr);
}

std::string FrameStream::local_address() const {
  asio::error_code error;
  const auto endpoint = socket_.local_endpoint(error);
  return error ? "" : endpoint.address().to_string();
}

asio::ip::tcp::socket FrameStream::release() {
  closed_ = true;
  on_frame_ = nullptr;
  on_end_ = nullptr;
  asio::error_code ignored;
  socket_.cancel(ignored);
  return std::move(socket_);
}

}  // namespace piper::comm::internal
