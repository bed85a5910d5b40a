#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/comm/caller.h>
#include <piper/comm/guarded_acceptor.h>
#include <piper/comm/network.h>
#include <piper/comm/tcp_connection.h>
#include <piper/comm/tcp_wire.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <charconv>
#include <chrono>
#include <future>
#include <map>
#include <thread>

namespace piper::comm {

using internal::Caller;
using internal::FrameStream;
using internal::GuardedAcceptor;
using internal::Introduction;
using internal::TcpConnection;

namespace {

constexpr size_t kSmallBytes = size_t{4} << 10;  // of a message that may hold up answers

struct Peer {  // none of this process
  std::shared_ptr<TcpConnection> small, large;
  bool is_complete() const { return large != nullptr; }
};

asio::ip::tcp::endpoint parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  asio::error_code error;
  const auto address = asio::ip::make_address(text.substr(0, colon), error);
  int port = 0;
  if (colon != std::string::npos)
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (error || port <= 0 || port > 65535)
    throw CommError(fmt::format("'{}' is no address and port", text));
  return {address, static_cast<uint16_t>(port)};
}

}  // namespace

// Everything but the connections' sending sides belongs to the I/O thread once start() was called,
// and to the thread that builds the wire and the I/O thread in turn before.
struct TcpWire::Impl {
  Impl(const Identity& identity, const std::string& secret, const std::string& address, Reach reach)
      : introduction{"wire", secret, identity},
        own(asio::ip::make_address(address), 0),
        peers(identity.num_processes),
        num_missing(2 * (identity.num_processes - 1)),
        acceptor(io, listen_on(address, 0, reach).fd, introduction, 2 * identity.num_processes,
                 [this](const std::shared_ptr<FrameStream>& stream, const Identity& who) {
                   if (who.process > introduction.mine.process)  // the others are called
                     add(stream, who);
                   else
                     stream->close();
                 }) {}

  void add(const std::shared_ptr<FrameStream>& stream, const Identity& who) {
    const bool known = who.process >= 0 && who.process < introduction.mine.num_processes;
    if (!known || peers[who.process].is_complete()) return stream->close();
    Peer& peer = peers[who.process];
    (peer.small == nullptr ? peer.small : peer.large) =
        std::make_shared<TcpConnection>(who.process, stream->release());
    if (--num_missing == 0) complete.set_value();
  }

  // One connection after the other: both sides then know which is which.
  void call(int64_t process, const asio::ip::tcp::endpoint& endpoint, double limit_seconds) {
    auto& caller = callers[process];
    caller = std::make_shared<Caller>(
        io, Caller::Options{endpoint, own, introduction, limit_seconds},
        [this, process, endpoint, limit_seconds](const std::shared_ptr<FrameStream>& stream,
                                                 const Identity* who, const std::string& why) {
          if (who == nullptr || who->process != process) {
            problems += fmt::format("; process {}: {}", process,
                                    who == nullptr ? why : "another process answers there");
            if (stream) stream->close();
            return;
          }
          add(stream, *who);
          if (!peers[process].is_complete()) call(process, endpoint, limit_seconds);
        });
    caller->start();
  }

  std::string missing() const {
    std::string text;
    for (int64_t p = 0; p < introduction.mine.num_processes; ++p)
      if (p != introduction.mine.process && !peers[p].is_complete())
        text += fmt::format("{}{}", text.empty() ? "" : ", ", p);
    return text;
  }

  // In the I/O thread.
  void close_all() {
    acceptor.close();
    for (const auto& [process, caller] : callers) caller->close();
    for_connections([](TcpConnection& connection) { connection.close(); });
  }

  template <class Visit>
  void for_connections(const Visit& visit) {
    for (const Peer& peer : peers)
      for (const auto& connection : {peer.small, peer.large})
        if (connection != nullptr) visit(*connection);
  }

  asio::io_context io;
  Introduction introduction;
  asio::ip::tcp::endpoint own;  // calls leave through the NIC on which this process listens
  std::vector<Peer> peers;      // by process
  int64_t num_missing;
  std::map<int64_t, std::shared_ptr<Caller>> callers;  // by process
  std::string problems;
  std::promise<void> complete;
  GuardedAcceptor acceptor;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  WireEvents* events = nullptr;
  std::thread thread;
};

TcpWire::TcpWire(const Identity& mine, const std::string& secret,
                 const std::string& numeric_address, Reach reach)
    : numeric_address_(numeric_address),
      impl_(std::make_unique<Impl>(mine, secret, numeric_address, reach)) {
  if (mine.num_processes == 1) impl_->complete.set_value();
  impl_->thread = std::thread([impl = impl_.get()] {
    try {
      impl->io.run();
    } catch (const std::exception& error) {
      if (impl->events != nullptr)
        impl->events->process_lost(impl->introduction.mine.process, cause_of(error));
    }
  });
}

TcpWire::~TcpWire() {
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->close_all();
    impl->io.stop();
  });
  impl_->thread.join();
}

std::string TcpWire::address() const {
  return fmt::format("{}:{}", numeric_address_, impl_->acceptor.port());
}

// A process calls those before it.
void TcpWire::connect(const std::vector<std::string>& addresses, double timeout_seconds) {
  const Identity& mine = impl_->introduction.mine;
  PIPER_CHECK(static_cast<int64_t>(addresses.size()) == mine.num_processes);
  for (int64_t p = 0; p < mine.process; ++p)
    asio::post(impl_->io, [impl = impl_.get(), p, endpoint = parse_endpoint(addresses[p]),
                           timeout_seconds] { impl->call(p, endpoint, timeout_seconds); });
  const auto complete = impl_->complete.get_future();
  if (complete.wait_for(std::chrono::duration<double>(timeout_seconds)) ==
      std::future_status::ready)
    return;
  std::promise<std::string> problem;
  asio::post(impl_->io, [&] {
    const std::string& trouble = impl_->acceptor.trouble();
    problem.set_value(impl_->missing() + impl_->problems + (trouble.empty() ? "" : "; " + trouble));
  });
  throw CommError(
      fmt::format("process {}: no connection for messages within {:.0f} s to process {}",
                  mine.process, timeout_seconds, problem.get_future().get()));
}

void TcpWire::start(WireEvents& events) {
  std::promise<void> started;
  asio::post(impl_->io, [&] {
    impl_->acceptor.close();
    impl_->events = &events;
    impl_->for_connections([&](TcpConnection& connection) { connection.start(events); });
    started.set_value();
  });
  started.get_future().get();
}

size_t TcpWire::max_note_bytes() const { return internal::kTcpNoteBytes; }

void TcpWire::send_note(int64_t process, std::span<const std::byte> head,
                        std::span<const std::byte> body) {
  const Peer& peer = impl_->peers[process];
  (body.size() <= kSmallBytes ? peer.small : peer.large)->send_note(head, body);
}

void TcpWire::send_payload(int64_t process, uint64_t id, std::span<const std::byte> bytes) {
  impl_->peers[process].large->send_payload(id, bytes);
}

void TcpWire::expect_payload(int64_t process, uint64_t id, std::span<std::byte> bytes) {
  impl_->peers[process].large->expect_payload(id, bytes);
}

bool TcpWire::cancel_payload(int64_t process, uint64_t id) {
  return impl_->peers[process].large->cancel_payload(id);
}

void TcpWire::abandon() {
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->close_all();
    if (impl->events != nullptr) impl->events->abandoned();
  });
}

void TcpWire::close() {
  std::promise<void> closed;
  asio::post(impl_->io, [&] {
    impl_->close_all();
    closed.set_value();
  });
  closed.get_future().get();
}

}  // namespace piper::comm
