#include <fmt/format.h>
#include <piper/comm/caller.h>
#include <piper/comm/descriptors.h>

#include <algorithm>

namespace piper::comm::internal {
namespace {

// Between attempts, half to one and a half times as long: callers that were dropped together do not
// come back together.
constexpr double kRetrySeconds = 0.1;

// An acceptor answers a knock as soon as its thread runs. Doubled with every attempt, so that a
// slow one is waited for.
constexpr double kAnswerSeconds = 2;

}  // namespace

Caller::Caller(asio::io_context& io, Options options, OnAnswer on_answer)
    : options_(std::move(options)),
      on_answer_(std::move(on_answer)),
      socket_(io),
      timer_(io),
      answer_seconds_(kAnswerSeconds),
      random_(std::random_device{}()) {}

void Caller::start() {
  give_up_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(options_.limit_seconds));
  attempt();
}

void Caller::attempt() {
  asio::error_code error;
  socket_ = asio::ip::tcp::socket(socket_.get_executor());
  socket_.open(options_.to.protocol(), error);
  if (error) return again(descriptor_shortage(error.value()));
  asio::error_code ignored;  // an address of another family than the peer's
  if (options_.from) socket_.bind(*options_.from, ignored);
  timer_.expires_at(give_up_);  // an address that swallows packets
  timer_.async_wait([self = shared_from_this()](const asio::error_code& stopped) {
    asio::error_code gone;
    if (!stopped) self->socket_.close(gone);
  });
  socket_.async_connect(options_.to, [self = shared_from_this()](const asio::error_code& failed) {
    if (!self->on_answer_) return;
    self->timer_.cancel();
    if (failed) return self->again(failed.message());
    self->connected();
  });
}

void Caller::connected() {
  stream_ = std::make_shared<FrameStream>(std::move(socket_));
  Introduction introduction = options_.introduction;
  const std::chrono::duration<double> left = give_up_ - Clock::now();
  introduction.limit_seconds = std::max(0.1, left.count());
  introduce(
      stream_, introduction, std::min(answer_seconds_, introduction.limit_seconds),
      [self = shared_from_this()](const Identity* who, const std::string& why, Outcome outcome) {
        if (!self->on_answer_) return;
        if (who != nullptr) return self->end(who, "");
        if (outcome == Outcome::kLost) return self->again(why);
        self->end(nullptr, why);
      });
  answer_seconds_ *= 2;
}

void Caller::again(const std::string& why) {
  stream_ = nullptr;
  const double pause = kRetrySeconds * std::uniform_real_distribution<>(0.5, 1.5)(random_);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(pause));
  if (until >= give_up_)
    return end(nullptr, fmt::format("{} after {:.0f} s", why, options_.limit_seconds));
  timer_.expires_at(until);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& stopped) {
    if (!stopped && self->on_answer_) self->attempt();
  });
}

void Caller::end(const Identity* who, const std::string& why) {
  const OnAnswer on_answer = std::move(on_answer_);
  on_answer_ = nullptr;
  const auto stream = std::move(stream_);
  on_answer(who != nullptr ? stream : nullptr, who, why);
}

void Caller::close() {
  on_answer_ = nullptr;
  timer_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
  if (stream_) stream_->close();
}

}  // namespace piper::comm::internal
