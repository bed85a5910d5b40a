// An open port at which only processes of the run get in. Strangers are dropped when they do not
// introduce themselves in time; while kMaxStrangers of them are inside, the others wait outside.
// Internal.
#pragma once

#include <piper/comm/handshake.h>

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>

namespace piper::comm::internal {

constexpr size_t kMaxStrangers = 64;

// Belongs to the thread that runs the io_context.
class GuardedAcceptor {
 public:
  using OnPeer = std::function<void(const std::shared_ptr<FrameStream>&, const Identity&)>;

  // Takes over a socket that listens; InvalidInput when it does not.
  GuardedAcceptor(asio::io_context& io, int fd, Introduction introduction, OnPeer on_peer);

  std::string address() const;  // numeric
  int port() const;
  void close();

 private:
  void accept();  // one more
  void receive(asio::ip::tcp::socket socket);

  asio::ip::tcp::acceptor acceptor_;
  Introduction introduction_;
  OnPeer on_peer_;
  bool accepts_ = true;  // not while kMaxStrangers are inside
  std::set<std::shared_ptr<FrameStream>> strangers_;
};

}  // namespace piper::comm::internal
