#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/checkpoint/checkpoint_writer.h>
#include <piper/nn/counting_allocator.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace piper::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CheckpointWriter::CheckpointWriter(WriterOptions options, CheckpointIdentity identity)
    : options_(std::move(options)),
      identity_(std::move(identity)),
      thread_([this] { write_saves(); }) {
  PIPER_CHECK(options_.keep >= 1);
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

CheckpointWriter::Share CheckpointWriter::share_of(
    const std::vector<nn::NamedTensor>& tensors) const {
  if (!options_.copies) return {.tensors = tensors};
  Share share;
  try {
    const nn::AllocatingRank nobody;
    for (const nn::NamedTensor& tensor : tensors)
      share.tensors.push_back({tensor.name, tensor.value.detach().cpu().contiguous().clone()});
  } catch (const std::exception& error) {
    share = {.failure = fmt::format("cannot copy its tensors: {}", error.what())};
  }
  return share;
}

void CheckpointWriter::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void CheckpointWriter::hand_in(Rank rank, const TrainState& state,
                               const std::vector<nn::NamedTensor>& tensors) {
  PIPER_CHECK(rank.valid() && rank.value < identity_.mesh.world());
  const Clock::time_point start = Clock::now();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_writing_ && !shares_.contains(rank); });
    rethrow_failure();
  }
  Share share = share_of(tensors);
  std::unique_lock lock(mutex_);
  shares_.emplace(rank, std::move(share));
  if (rank == Rank(0) || options_.process > 0) state_ = state;
  report_.waited_seconds = std::max(report_.waited_seconds, seconds_since(start));
  const int64_t number = num_done_;
  const int64_t expected =
      options_.num_local_ranks > 0 ? options_.num_local_ranks : identity_.mesh.world();
  if (std::ssize(shares_) == expected) is_writing_ = true;
  lock.unlock();
  changed_.notify_all();
  if (options_.copies) return;
  lock.lock();
  changed_.wait(lock, [&] { return num_done_ > number; });
  rethrow_failure();
}

void CheckpointWriter::write_saves() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_writing_ || is_ending_; });
    if (!is_writing_) return;
    std::map<Rank, Share> shares = std::exchange(shares_, {});
    const TrainState state = state_;
    const SaveReport handed_in = std::exchange(report_, {});
    lock.unlock();
    SaveReport report;
    std::exception_ptr failure;
    const auto attempt = [&](const auto& work) {
      try {
        if (!failure) work();
      } catch (...) {
        failure = std::current_exception();
      }
    };
    attempt([&] {
      report = write(shares, state);
      report.waited_seconds =
          handed_in.waited_seconds + (options_.copies ? 0 : report.written_seconds);
    });
    shares.clear();
    lock.lock();
    failure_ = failure;
    ++num_done_;  // ranks that made no copies go on, while the older checkpoints are read
    changed_.notify_all();
    lock.unlock();
    attempt([&] { rotate(report); });
    lock.lock();
    failure_ = failure;
    if (!failure) reports_.push_back(report);
    is_writing_ = false;
    changed_.notify_all();
  }
}

SaveReport CheckpointWriter::write(const std::map<Rank, Share>& shares,
                                   const TrainState& state) const {
  const Clock::time_point start = Clock::now();
  SaveReport report{.step = state.step};
  CheckpointSave save(options_.folder, identity_, state, options_.disk, options_.token);
  for (const auto& [rank, share] : shares) report.bytes += shard_bytes(share.tensors);
  save.require_space(report.bytes);
  for (const auto& [rank, share] : shares) {
    if (share.failure.empty())
      save.write_shard(rank, share.tensors);
    else
      save.report_failure(rank, share.failure);
  }
  put_together(save);
  report.written_seconds = seconds_since(start);
  return report;
}

void CheckpointWriter::put_together(CheckpointSave& save) const {
  if (options_.process > 0) return save.hand_over(options_.process);
  save.collect(options_.num_processes, options_.timeout_seconds,
               [&] { return options_.others_failed && options_.others_failed(); });
  if (options_.before_commit) options_.before_commit();
  save.commit();
}

void CheckpointWriter::rotate(SaveReport& report) const {
  if (options_.process > 0) return;
  const Clock::time_point start = Clock::now();
  Rotation rotation = keep_newest(options_.folder, options_.keep);
  report.verified_bytes = rotation.read_bytes;
  report.verified_seconds = seconds_since(start);
  report.notes = std::move(rotation.notes);
}

void CheckpointWriter::check() const {
  const std::lock_guard lock(mutex_);
  rethrow_failure();
}

void CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_writing_; });
  rethrow_failure();
}

std::vector<SaveReport> CheckpointWriter::take_reports() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

}  // namespace piper::checkpoint
