// How a connection between two processes of a run begins: each proves that it knows the run's
// secret, by an HMAC over fresh nonces of both sides and over what it says about itself. Internal.
//
//   acceptor: challenge (nonce a)          ->
//                                          <- hello (who, nonce c, HMAC of purpose, a, c, who)
//   acceptor: welcome (who, HMAC of purpose, c, a, who) ->
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

// The peer, once it has proved itself; otherwise who is nullptr and `why` says why. The stream is
// closed then. Called once.
using OnIntroduced = std::function<void(const Identity* who, const std::string& why)>;

void accept_introduction(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
                         OnIntroduced done);
void introduce(const std::shared_ptr<FrameStream>& stream, Introduction introduction,
               OnIntroduced done);

}  // namespace piper::comm::internal
