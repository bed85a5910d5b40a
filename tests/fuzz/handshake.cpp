// The introduction with which a connection begins, and what follows: a side that executes by the
// rules meets one that says what the bytes are. The first byte chooses the side, and what of the
// other's proofs is right; nobody is let in without.
#include <piper/comm/bytes.h>
#include <piper/comm/handshake.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

using comm::internal::FrameStream;
using comm::internal::Introduction;
using comm::internal::Outcome;

const Introduction kMine{"control", "a secret of the run", {1, 2, 4, "here", 7}, 1};

// A stream, and the other end of its connection.
struct Line {
  Line() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    other_end = ends[1];
    asio::ip::tcp::socket socket(io);
    socket.assign(asio::ip::tcp::v4(), ends[0]);
    stream = std::make_shared<FrameStream>(std::move(socket));
  }
  ~Line() {
    stream->close();
    ::close(other_end);
    io.restart();
    io.poll();
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void execute() {
    io.restart();
    io.poll();
  }
  void say(std::span<const std::byte> bytes) const {
    if (::send(other_end, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
  }

  asio::io_context io;
  std::shared_ptr<FrameStream> stream;
  int other_end = -1;
};

}  // namespace

void fuzz(std::span<const std::byte> bytes) {
  comm::ByteReader in(bytes);
  const auto choice = in.number<uint8_t>();
  bool let_in = false;
  const auto done = [&](const comm::Identity* who, const std::string& why, Outcome) {
    let_in = who != nullptr;
    FUZZ_CHECK(let_in || !why.empty());
  };
  Line line;  // which may still say that the time is over when it ends
  if (choice % 2 == 0)
    comm::internal::accept_introduction(line.stream, kMine, comm::internal::make_knock(kMine),
                                        done);
  else
    comm::internal::introduce(line.stream, kMine, 1, done);
  while (in.ok() && !in.rest().empty()) {
    line.say(in.raw(std::min<size_t>(in.number<uint8_t>(), in.rest().size())));
    line.execute();
  }
  FUZZ_CHECK(!let_in);
  // A knock is right only by its proof.
  if (const auto knock = comm::parse_knock(bytes))
    FUZZ_CHECK(!comm::internal::knows_secret(*knock, kMine));
}

}  // namespace piper::fuzz
