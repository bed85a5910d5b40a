#include <piper/comm/bytes.h>
#include <piper/comm/handshake.h>

#include <asio/steady_timer.hpp>
#include <chrono>

namespace piper::comm::internal {
namespace {

Digest knock_proof(const Introduction& introduction, const Digest& nonce) {
  ByteWriter out;
  out.text(introduction.purpose).text("knock").raw(nonce);
  return hmac(introduction.secret, out.take());
}

class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  Handshake(std::shared_ptr<FrameStream> stream, Introduction introduction, OnIntroduced done)
      : stream_(std::move(stream)),
        timer_(stream_->executor()),
        introduction_(std::move(introduction)),
        done_(std::move(done)) {}

  void accept(const KnockBody& knock) {
    expected_ = FrameKind::kHello;
    callers_ = knock.nonce;
    acceptors_ = random_nonce();
    start(introduction_.limit_seconds);
    stream_->send(FrameKind::kChallenge, encode(ChallengeBody{acceptors_}));
  }

  void call(double answer_seconds) {
    expected_ = FrameKind::kChallenge;
    const KnockBody knock = make_knock(introduction_);
    callers_ = knock.nonce;
    start(answer_seconds);
    stream_->send(FrameKind::kKnock, encode(knock));
  }

 private:
  void start(double limit_seconds) {
    const auto self = shared_from_this();
    set_limit(limit_seconds);
    stream_->start([self](const Frame& frame) { self->take(frame); },
                   [self](const std::string& why) {
                     self->finish(nullptr, why,
                                  self->stream_->garbled() ? Outcome::kRefused : Outcome::kLost);
                   });
  }

  void set_limit(double seconds) {
    timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->finish(nullptr, "it does not introduce itself in time", Outcome::kLost);
    });
  }

  void take(const Frame& frame) {
    if (frame.kind == FrameKind::kReject && expected_ == FrameKind::kChallenge)
      return refuse("it knows another secret than this process");
    if (frame.kind != expected_) return refuse("it speaks another protocol");
    if (expected_ == FrameKind::kChallenge) return answer(frame);
    const std::optional<HelloBody> hello = parse_hello(frame.body);
    const bool accepts = expected_ == FrameKind::kHello;
    if (!hello || !equal(hello->proof, proof(accepts, hello->identity)))
      return refuse("it does not know the secret of this run");
    if (accepts)
      stream_->send(FrameKind::kWelcome,
                    encode(HelloBody{introduction_.mine, proof(false, introduction_.mine)}));
    finish(&hello->identity, "", Outcome::kLost);
  }

  void answer(const Frame& frame) {
    const std::optional<ChallengeBody> challenge = parse_challenge(frame.body);
    if (!challenge) return refuse("it speaks another protocol");
    acceptors_ = challenge->nonce;
    expected_ = FrameKind::kWelcome;
    set_limit(introduction_.limit_seconds);
    stream_->send(FrameKind::kHello,
                  encode(HelloBody{introduction_.mine, proof(true, introduction_.mine)}));
  }

  // `hello` tells the proof of the one who connects from that of the acceptor.
  Digest proof(bool hello, const Identity& who) const {
    ByteWriter out;
    out.text(introduction_.purpose).text(hello ? "hello" : "welcome");
    out.raw(hello ? acceptors_ : callers_).raw(hello ? callers_ : acceptors_).raw(encode(who));
    return hmac(introduction_.secret, out.take());
  }

  void refuse(const std::string& why) { finish(nullptr, why, Outcome::kRefused); }

  void finish(const Identity* who, const std::string& why, Outcome outcome) {
    const OnIntroduced done = std::move(done_);
    done_ = nullptr;
    timer_.cancel();
    if (who == nullptr) stream_->close();
    if (done) done(who, why, outcome);
  }

  std::shared_ptr<FrameStream> stream_;
  asio::steady_timer timer_;
  Introduction introduction_;
  OnIntroduced done_;
  FrameKind expected_ = FrameKind::kChallenge;
  Digest callers_{}, acceptors_{};  // nonces
};

}  // namespace

KnockBody make_knock(const Introduction& introduction) {
  const Digest nonce = random_nonce();
  return {nonce, knock_proof(introduction, nonce)};
}

bool knows_secret(const KnockBody& knock, const Introduction& introduction) {
  return equal(knock.proof, knock_proof(introduction, knock.nonce));
}

void accept_introduction(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
                         const KnockBody& knock, OnIntroduced done) {
  std::make_shared<Handshake>(stream, std::move(introduction), std::move(done))->accept(knock);
}

void introduce(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
               double answer_seconds, OnIntroduced done) {
  std::make_shared<Handshake>(stream, std::move(introduction), std::move(done))
      ->call(answer_seconds);
}

}  // namespace piper::comm::internal
