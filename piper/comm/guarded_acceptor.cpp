#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/guarded_acceptor.h>
#include <sys/socket.h>

namespace piper::comm::internal {

GuardedAcceptor::GuardedAcceptor(asio::io_context& io, int fd, Introduction introduction,
                                 OnPeer on_peer)
    : acceptor_(io), introduction_(std::move(introduction)), on_peer_(std::move(on_peer)) {
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
  accept();
}

std::string GuardedAcceptor::address() const {
  return acceptor_.local_endpoint().address().to_string();
}

int GuardedAcceptor::port() const { return acceptor_.local_endpoint().port(); }

void GuardedAcceptor::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (!error) receive(std::move(socket));
    accepts_ = strangers_.size() < kMaxStrangers;
    if (accepts_) accept();
  });
}

void GuardedAcceptor::receive(asio::ip::tcp::socket socket) {
  const auto stream = std::make_shared<FrameStream>(std::move(socket));
  strangers_.insert(stream);
  accept_introduction(stream, introduction_,
                      [this, stream](const Identity* who, const std::string&) {
                        strangers_.erase(stream);
                        if (!accepts_) accept();
                        accepts_ = true;
                        if (who != nullptr) on_peer_(stream, *who);
                      });
}

void GuardedAcceptor::close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  for (const auto& stream : strangers_) stream->close();
  strangers_.clear();
}

}  // namespace piper::comm::internal
