#include <fmt/core.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/descriptors.h>
#include <piper/comm/guarded_acceptor.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cstdio>
#include <cstring>

namespace piper::comm::internal {
namespace {

constexpr int kYield = 64;  // connections accepted before the thread's other work has its turn
constexpr std::chrono::milliseconds kSweepInterval{250};
constexpr std::chrono::milliseconds kShortestRest{10}, kLongestRest{500};
constexpr size_t kMinGuests = 64;

std::vector<std::byte> knock_frame(const Introduction& introduction) {
  return make_frame(FrameKind::kKnock, encode(make_knock(introduction)));
}

// A connection that is reset ends at once and leaves nothing in the kernel: no TIME_WAIT, nothing
// to send. On Linux it takes this from the socket that listens, one call less for each stranger.
const asio::socket_base::linger kIsReset(true, 0), kIsClosedInOrder(false, 0);

}  // namespace

GuardedAcceptor::GuardedAcceptor(asio::io_context& io, int fd, Introduction introduction,
                                 int64_t num_expected, OnPeer on_peer)
    : io_(io),
      acceptor_(io),
      introduction_(std::move(introduction)),
      max_guests_(kMinGuests + 2 * static_cast<size_t>(num_expected)),
      on_peer_(std::move(on_peer)),
      knock_(knock_frame(introduction_)),
      sweeper_(io),
      pause_(io),
      random_(std::random_device{}()) {
  PIPER_CHECK(knock_.size() == kKnockBytes);
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  asio::error_code error;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0)
    acceptor_.assign(name.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), fd,
                     error);
  int listens = 0;
  size = sizeof listens;
  getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
  if (error || !acceptor_.is_open() || listens == 0)
    throw InvalidInput(fmt::format("file descriptor {} is no socket that listens", fd));
  acceptor_.non_blocking(true);
  acceptor_.set_option(kIsReset, error);
  port_ = acceptor_.local_endpoint().port();
  wait();
}

void GuardedAcceptor::wait() {
  acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read, [this](const asio::error_code& error) {
    if (!error && acceptor_.is_open()) accept();
  });
}

void GuardedAcceptor::accept() {
  for (int i = 0; i < kYield; ++i) {
    asio::error_code error;
    asio::ip::tcp::socket socket(io_);
    acceptor_.accept(socket, error);
    if (error == asio::error::would_block || error == asio::error::try_again) return wait();
    if (is_descriptor_shortage(error.value())) return rest(error.value());
    if (error) continue;  // of that connection alone
    trouble_.clear();
    rest_ = {};
    receive(std::move(socket));
  }
  asio::post(io_, [this] {
    if (acceptor_.is_open()) accept();
  });
}

void GuardedAcceptor::rest(int error) {
  trouble_ = descriptor_shortage(error);
  for (size_t left = strangers_.size() / 2; strangers_.size() > left;) drop_any();
  rest_ = std::clamp<Clock::duration>(2 * rest_, kShortestRest, kLongestRest);
  if (!told_) fmt::print(stderr, "piper: port {} accepts nobody for now: {}\n", port_, trouble_);
  told_ = true;
  pause_.expires_after(rest_);
  pause_.async_wait([this](const asio::error_code& stopped) {
    if (!stopped && acceptor_.is_open()) accept();
  });
}

void GuardedAcceptor::receive(asio::ip::tcp::socket socket) {
  asio::error_code error;
  socket.non_blocking(true, error);
  const auto stranger = std::make_shared<Stranger>(std::move(socket));
  if (strangers_.size() >= kMaxStrangers) drop_any();
  stranger->until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(kKnockSeconds));
  stranger->place = strangers_.size();
  strangers_.push_back(stranger);
  listen_to(stranger);
  if (!sweeps_) sweep();
}

void GuardedAcceptor::listen_to(const Held& stranger) {
  if (!read(*stranger)) return drop(stranger);
  if (stranger->num_held == kKnockBytes) return let_in(stranger);
  stranger->socket.async_wait(asio::ip::tcp::socket::wait_read,
                              [this, stranger](const asio::error_code& error) {
                                if (!error && stranger->socket.is_open()) listen_to(stranger);
                              });
}

bool GuardedAcceptor::read(Stranger& stranger) {
  const auto room = std::span(stranger.bytes).subspan(stranger.num_held);
  asio::error_code error;
  const size_t size = stranger.socket.read_some(asio::buffer(room.data(), room.size()), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return true;
  if (error) return false;
  stranger.num_held += size;
  const size_t known = std::min(stranger.num_held, kKnockPrefixBytes);
  return std::memcmp(stranger.bytes.data(), knock_.data(), known) == 0;
}

void GuardedAcceptor::let_in(const Held& stranger) {
  asio::error_code ignored;
  stranger->socket.set_option(kIsClosedInOrder, ignored);
  const std::optional<KnockBody> knock = parse_knock(std::span(stranger->bytes).subspan(5));
  if (!knock || !knows_secret(*knock, introduction_)) {
    // A process of another run, most likely: it need not try again.
    const auto no = make_frame(FrameKind::kReject, {});
    stranger->socket.write_some(asio::buffer(no), ignored);
    stranger->socket.close(ignored);  // not reset, which might overtake the answer
    return forget(*stranger);
  }
  auto socket = std::move(stranger->socket);
  forget(*stranger);
  if (guests_.size() >= max_guests_) drop_guest();
  const auto stream = std::make_shared<FrameStream>(std::move(socket));
  guests_.push_back(stream);
  accept_introduction(stream, introduction_, *knock,
                      [this, stream](const Identity* who, const std::string&, Outcome) {
                        std::erase(guests_, stream);
                        if (who != nullptr) on_peer_(stream, *who);
                      });
}

void GuardedAcceptor::forget(const Stranger& stranger) {
  const Held last = strangers_.back();
  strangers_[stranger.place] = last;
  last->place = stranger.place;
  strangers_.pop_back();
}

void GuardedAcceptor::drop(const Held& stranger) {
  asio::error_code ignored;
  stranger->socket.close(ignored);
  forget(*stranger);
}

template <class All>
size_t GuardedAcceptor::any_of(const All& all) {
  return std::uniform_int_distribution<size_t>(0, all.size() - 1)(random_);
}

void GuardedAcceptor::drop_any() { drop(Held(strangers_[any_of(strangers_)])); }

void GuardedAcceptor::drop_guest() {
  const size_t at = any_of(guests_);
  guests_[at]->close();
  guests_.erase(guests_.begin() + static_cast<ptrdiff_t>(at));
}

void GuardedAcceptor::sweep() {
  const Clock::time_point now = Clock::now();
  for (size_t i = strangers_.size(); i-- > 0;)
    if (strangers_[i]->until < now) drop(Held(strangers_[i]));
  sweeps_ = !strangers_.empty();
  if (!sweeps_) return;
  sweeper_.expires_after(kSweepInterval);
  sweeper_.async_wait([this](const asio::error_code& stopped) {
    if (!stopped) sweep();
  });
}

void GuardedAcceptor::close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  sweeper_.cancel();
  pause_.cancel();
  while (!strangers_.empty()) drop(Held(strangers_.back()));
  const auto guests = std::move(guests_);
  guests_.clear();
  for (const auto& stream : guests) stream->close();
}

}  // namespace piper::comm::internal
