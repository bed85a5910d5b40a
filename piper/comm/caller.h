// Connects to the guarded port (guarded_acceptor.h) of another process of the run, and tries again
// until it is let in: the port may not be open yet, and where strangers crowd it a connection may
// be dropped. Internal; belongs to the thread that runs the io_context.
#pragma once

#include <piper/comm/handshake.h>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

namespace piper::comm::internal {

class Caller : public std::enable_shared_from_this<Caller> {
 public:
  struct Options {
    asio::ip::tcp::endpoint to;
    std::optional<asio::ip::tcp::endpoint> from;  // where a host has several NICs
    Introduction introduction;  // with its limit: what is left between challenge and welcome
    double limit_seconds = 60;  // of all attempts together
  };
  // The stream and who is at its other end; otherwise null twice, and why. Called once, never after
  // close().
  using OnAnswer = std::function<void(const std::shared_ptr<FrameStream>&, const Identity* who,
                                      const std::string& why)>;

  Caller(asio::io_context& io, Options options, OnAnswer on_answer);
  void start();
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void attempt();
  void connected();
  void again(const std::string& why);
  void end(const Identity* who, const std::string& why);

  Options options_;
  OnAnswer on_answer_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  Clock::time_point give_up_;
  double answer_seconds_;
  std::shared_ptr<FrameStream> stream_;
  std::minstd_rand random_;
};

}  // namespace piper::comm::internal
