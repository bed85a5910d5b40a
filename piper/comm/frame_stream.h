// A connection that carries frames. Internal: of the headers, only this one and those that
// include it know Asio. Everything happens in the thread that runs the socket's io_context.
#pragma once

#include <piper/comm/control_frame.h>

#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::comm::internal {

class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using OnFrame = std::function<void(const Frame&)>;
  using OnEnd = std::function<void(const std::string& why)>;

  // A stranger's frames are small, and few of them are held.
  explicit FrameStream(asio::ip::tcp::socket socket, size_t limit = kMaxStrangerFrameBytes);

  // Begins to read. `on_end` is called at most once, for the peer's end or for bad frames, never
  // after close().
  void start(OnFrame on_frame, OnEnd on_end);
  // Replaces who is told; may be called inside `on_frame`.
  void listen(OnFrame on_frame, OnEnd on_end);
  void set_limit(size_t limit) { limit_ = limit; }

  void send(FrameKind kind, std::span<const std::byte> body = {});
  bool garbled() const { return garbled_; }  // it has ended because what came is no frame
  bool all_sent() const { return queue_.empty(); }
  void close();                // drops what is not sent yet
  void close_after_sending();  // reads nothing more
  // The socket, for other uses; the stream is over. Requires that nothing was read beyond a frame.
  asio::ip::tcp::socket release();

  std::string local_address() const;  // numeric; "" when the connection is gone
  asio::ip::tcp::socket::executor_type executor() { return socket_.get_executor(); }

 private:
  void read();
  void write();
  bool parse();  // false when the stream has ended
  void end(const std::string& why);

  asio::ip::tcp::socket socket_;
  size_t limit_;
  OnFrame on_frame_;
  OnEnd on_end_;
  std::vector<std::byte> buffer_;
  size_t num_held_ = 0;  // bytes at the front of buffer_ that no whole frame has taken yet
  std::deque<std::vector<std::byte>> queue_;
  bool closed_ = false, closing_ = false, garbled_ = false;
};

}  // namespace piper::comm::internal
