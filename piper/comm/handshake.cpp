#include <piper/comm/bytes.h>
#include <piper/comm/handshake.h>

#include <asio/steady_timer.hpp>
#include <chrono>

namespace piper::comm::internal {
namespace {

class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  Handshake(std::shared_ptr<FrameStream> stream, Introduction introduction, OnIntroduced done)
      : stream_(std::move(stream)),
        timer_(stream_->executor()),
        introduction_(std::move(introduction)),
        done_(std::move(done)) {}

  void start(bool accepts) {
    const auto self = shared_from_this();
    timer_.expires_after(
        std::chrono::milliseconds(static_cast<int64_t>(1000 * introduction_.limit_seconds)));
    timer_.async_wait([self](const asio::error_code& error) {
      if (!error) self->finish(nullptr, "it does not introduce itself in time");
    });
    stream_->start([self](const Frame& frame) { self->take(frame); },
                   [self](const std::string& why) { self->finish(nullptr, why); });
    if (accepts) {
      mine_ = random_nonce();
      stream_->send(FrameKind::kChallenge, encode(ChallengeBody{mine_}));
    }
    expected_ = accepts ? FrameKind::kHello : FrameKind::kChallenge;
  }

 private:
  void take(const Frame& frame) {
    if (frame.kind != expected_) return refuse("it speaks another protocol");
    if (expected_ == FrameKind::kChallenge) return answer(frame);
    const std::optional<HelloBody> hello = parse_hello(frame.body);
    const bool accepts = expected_ == FrameKind::kHello;
    if (hello && accepts) theirs_ = hello->nonce;
    if (!hello || !equal(hello->proof, proof(accepts, hello->identity)))
      return refuse("it does not know the secret of this run");
    if (accepts)
      stream_->send(FrameKind::kWelcome,
                    encode(HelloBody{introduction_.mine, {}, proof(false, introduction_.mine)}));
    finish(&hello->identity, "");
  }

  void answer(const Frame& frame) {
    const std::optional<ChallengeBody> challenge = parse_challenge(frame.body);
    if (!challenge) return refuse("it speaks another protocol");
    theirs_ = challenge->nonce;
    mine_ = random_nonce();
    expected_ = FrameKind::kWelcome;
    stream_->send(FrameKind::kHello,
                  encode(HelloBody{introduction_.mine, mine_, proof(true, introduction_.mine)}));
  }

  // `hello` tells the proof of the one who connects from that of the acceptor.
  Digest proof(bool hello, const Identity& who) const {
    ByteWriter out;
    out.text(introduction_.purpose).text(hello ? "hello" : "welcome");
    const bool accepts = expected_ == FrameKind::kHello;
    out.raw(accepts ? mine_ : theirs_).raw(accepts ? theirs_ : mine_).raw(encode(who));
    return hmac(introduction_.secret, out.take());
  }

  void refuse(const std::string& why) {
    stream_->close();
    finish(nullptr, why);
  }

  void finish(const Identity* who, const std::string& why) {
    const OnIntroduced done = std::move(done_);
    done_ = nullptr;
    timer_.cancel();
    if (who == nullptr) stream_->close();
    if (done) done(who, why);
  }

  std::shared_ptr<FrameStream> stream_;
  asio::steady_timer timer_;
  Introduction introduction_;
  OnIntroduced done_;
  FrameKind expected_ = FrameKind::kChallenge;
  Digest mine_{}, theirs_{};
};

}  // namespace

void accept_introduction(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
                         OnIntroduced done) {
  std::make_shared<Handshake>(stream, std::move(introduction), std::move(done))->start(true);
}

void introduce(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
               OnIntroduced done) {
  std::make_shared<Handshake>(stream, std::move(introduction), std::move(done))->start(false);
}

}  // namespace piper::comm::internal
