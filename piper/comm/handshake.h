// How a connection between two processes of a run begins: each proves that it knows the run's
// secret, by an HMAC over fresh nonces of both sides and over what it says about itself. Internal.
//
//   caller:   knock (nonce c, HMAC of purpose, c)             ->
//             challenge (nonce a)                             <- acceptor
//   caller:   hello (who, HMAC of purpose, a, c, who)         ->
//             welcome (who, HMAC of purpose, c, a, who)       <- acceptor
//
// The knock proves nothing for good, since it can be replayed. It is there so that the acceptor
// knows strangers before it spends anything on them: a knock travels right behind the connection,
// so a member's is there when the connection is accepted.
#pragma once

#include <piper/comm/frame_stream.h>

#include <functional>
#include <memory>
#include <string>

namespace piper::comm::internal {

struct Introduction {
  std::string purpose;  // of the connection: both sides say the same
  std::string secret;
  Identity mine;
  double limit_seconds = 5;
};

KnockBody make_knock(const Introduction& introduction);
bool knows_secret(const KnockBody& knock, const Introduction& introduction);

// What came of an introduction that failed.
enum class Outcome {
  kLost,     // the connection ended, or nothing came in time: another attempt may go better
  kRefused,  // the other side is not of this run
};

// The peer, once it has proved itself; otherwise who is nullptr and `why` says why. The stream is
// closed then. Called once.
using OnIntroduced =
    std::function<void(const Identity* who, const std::string& why, Outcome outcome)>;

// The acceptor's side, after the knock: all of it within introduction.limit_seconds.
void accept_introduction(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
                         const KnockBody& knock, OnIntroduced done);
// The caller's: the challenge within `answer_seconds`, the welcome introduction.limit_seconds
// later.
void introduce(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
               double answer_seconds, OnIntroduced done);

}  // namespace piper::comm::internal
