// An open port at which only processes of the run get in, whatever else connects. Internal.
//
//   accepted --> stranger --knock--> guest --introduction--> peer
//
// Strangers have not sent a whole knock (handshake.h) yet. A member's knock lies in the socket when
// it is accepted, so a member is a stranger for the time of one read. At most kMaxStrangers are
// held, each for kKnockSeconds: when one more comes, one of them, drawn at random, is dropped (as
// OpenSSH's MaxStartups does), and so is whoever's bytes are no knock. So nobody waits behind
// strangers, and a member that was dropped by bad luck comes back (caller.h).
//
// Guests have knocked with the run's secret. They are held apart, so that strangers, however many,
// push out none.
//
// Without a descriptor for one more connection, the acceptor drops half of its strangers; where
// that does not help, it rests. Connections then wait in the kernel's queue until descriptors come
// back.
#pragma once

#include <piper/comm/handshake.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace piper::comm::internal {

constexpr size_t kMaxStrangers = 256;
constexpr double kKnockSeconds = 2;  // of a stranger

// Belongs to the thread that runs the io_context.
class GuardedAcceptor {
 public:
  using OnPeer = std::function<void(const std::shared_ptr<FrameStream>&, const Identity&)>;

  // Takes over a socket that listens; InvalidInput when it does not. `num_expected` peers come.
  GuardedAcceptor(asio::io_context& io, int fd, Introduction introduction, int64_t num_expected,
                  OnPeer on_peer);

  int port() const { return port_; }
  // What keeps everybody out at this moment, or "". Said on standard error, too, once a port.
  const std::string& trouble() const { return trouble_; }
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    explicit Stranger(asio::ip::tcp::socket accepted) : socket(std::move(accepted)) {}
    asio::ip::tcp::socket socket;
    Clock::time_point until;
    size_t place = 0;  // in strangers_
    size_t num_held = 0;
    std::array<std::byte, kKnockBytes> bytes{};  // of a knock
  };
  using Held = std::shared_ptr<Stranger>;

  void wait();
  void accept();
  void rest(int error);
  void receive(asio::ip::tcp::socket socket);
  void listen_to(const Held& stranger);
  bool read(Stranger& stranger);  // false when nothing more can come of it
  void let_in(const Held& stranger);
  void forget(const Stranger& stranger);
  void drop(const Held& stranger);
  template <class All>
  size_t any_of(const All& all);  // the place of one of them
  void drop_any();
  void drop_guest();
  void sweep();

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  Introduction introduction_;
  size_t max_guests_;
  OnPeer on_peer_;
  int port_ = 0;
  std::vector<std::byte> knock_;  // any: the first bytes of all are the same
  std::vector<Held> strangers_;
  std::vector<std::shared_ptr<FrameStream>> guests_;
  asio::steady_timer sweeper_, pause_;
  bool sweeps_ = false;
  std::minstd_rand random_;
  Clock::duration rest_{};
  std::string trouble_;
  bool told_ = false;
};

}  // namespace piper::comm::internal
