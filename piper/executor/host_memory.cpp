#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/executor/host_memory.h>
#include <piper/executor/tensor_bytes.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace piper::executor {

namespace {

std::string reason() { return std::generic_category().message(errno); }

// A file without a name.
int open_unnamed(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // A file system that knows no such files.
  std::string name = (folder / "piper-host-memory-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

void* map_file(const std::filesystem::path& folder, size_t bytes) {
  const int file = open_unnamed(folder);
  if (file < 0)
    throw IoError(
        fmt::format("host memory: cannot make a file in {}: {}", folder.string(), reason()));
  // Room now, or a write would end the process later.
  const int full = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* const place =
      full == 0 ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const std::string why = full != 0 ? std::generic_category().message(full) : reason();
  ::close(file);
  if (place == MAP_FAILED)
    throw IoError(
        fmt::format("host memory: no room for {} bytes in {}: {}", bytes, folder.string(), why));
  return place;
}

void* map_own(size_t bytes) {
  void* const place =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED)
    throw IoError(fmt::format("host memory: no room for {} bytes: {}", bytes, reason()));
  return place;
}

}  // namespace

// Pages, kept when they are given back: fresh ones cost a fault each, and to lock them costs more.
class HostMemory::Pool : public std::enable_shared_from_this<Pool> {
 public:
  Pool(std::filesystem::path folder, std::optional<PageLock> page_lock)
      : folder_(std::move(folder)), page_lock_(page_lock) {}
  ~Pool() {
    for (const auto& [size, place] : free_) {
      if (page_lock_) page_lock_->unlock(place);
      ::munmap(place, size);
    }
  }

  at::Tensor allocate(int64_t bytes) {
    const auto [size, place] = take(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (place == nullptr)
      return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    return at::from_blob(
        place, {bytes},
        [pool = shared_from_this(), size = size](void* given) {
          const std::lock_guard lock(pool->mutex_);
          pool->free_.emplace(size, given);
        },
        at::TensorOptions().dtype(at::kByte));
  }

 private:
  // nullptr: pages that cannot be locked.
  std::pair<size_t, void*> take(size_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.lower_bound(size);
      if (found != free_.end() && found->first <= 2 * size) {
        const std::pair<size_t, void*> given = *found;
        free_.erase(found);
        return given;
      }
    }
    void* const place = folder_.empty() ? map_own(size) : map_file(folder_, size);
    if (!page_lock_ || page_lock_->lock(place, size)) return {size, place};
    ::munmap(place, size);
    return {size, nullptr};
  }

  const std::filesystem::path folder_;
  const std::optional<PageLock> page_lock_;
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
};

namespace {

struct Job {
  std::vector<HostMemory::Copy> copies;
  std::atomic<bool> done{false};
};

class Copying final : public comm::Operation {
 public:
  Copying(std::shared_ptr<Job> job, std::string what)
      : job_(std::move(job)), what_(std::move(what)) {}
  bool advance() override { return job_->done.load(std::memory_order_acquire); }
  std::string waiting_for() const override {
    return fmt::format("'{}', waiting for the link to the host", what_);
  }

 private:
  std::shared_ptr<Job> job_;
  std::string what_;
};

}  // namespace

class HostMemory::Link {
 public:
  Link(double bytes_per_second, std::function<void()> ended)
      : bytes_per_second_(bytes_per_second), ended_(std::move(ended)), thread_([this] { run(); }) {}
  ~Link() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void add(std::shared_ptr<Job> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return over_ || !jobs_.empty(); });
      if (over_) return;
      const std::shared_ptr<Job> job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      due_ = std::max(due_, Clock::now());
      for (const Copy& copy : job->copies) move(copy);
      job->copies.clear();
      job->done.store(true, std::memory_order_release);
      if (ended_) ended_();
      lock.lock();
    }
  }

  // In pieces, each of which takes its time.
  void move(const Copy& copy) {
    constexpr size_t kPiece = size_t{1} << 20;
    const std::span<const std::byte> from = bytes_of(copy.from);
    const std::span<std::byte> to = mutable_bytes_of(copy.to);
    for (size_t at = 0; at < from.size(); at += kPiece) {
      const size_t size = std::min(kPiece, from.size() - at);
      std::memcpy(to.data() + at, from.data() + at, size);
      if (bytes_per_second_ <= 0) continue;
      due_ += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(size) / bytes_per_second_));
      std::this_thread::sleep_until(due_);
    }
  }

  const double bytes_per_second_;
  const std::function<void()> ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool over_ = false;
  Clock::time_point due_{};  // the copying thread's: when what it has moved may have arrived
  std::thread thread_;       // last: it reads the others
};

HostMemory::HostMemory(HostMemoryOptions options)
    : options_(std::move(options)),
      pool_(std::make_shared<Pool>(options_.folder,
                                   options_.folder.empty() ? options_.page_lock : std::nullopt)) {
  if (options_.device.is_cpu())
    link_ = std::make_unique<Link>(options_.bytes_per_second, options_.ended);
}

HostMemory::~HostMemory() = default;

at::Tensor HostMemory::allocate(int64_t bytes) { return pool_->allocate(bytes); }

std::unique_ptr<comm::Operation> HostMemory::start(std::vector<Copy> copies, std::string what) {
  for (const Copy& copy : copies)
    PIPER_CHECK(copy.to.is_contiguous() && copy.from.is_contiguous() &&
                    copy.to.nbytes() == copy.from.nbytes(),
                "a copy to or from the host of other bytes: " + what);
  auto job = std::make_shared<Job>();
  if (link_ != nullptr) {
    job->copies = std::move(copies);
    link_->add(job);
  } else {
    for (Copy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
    job->done.store(true, std::memory_order_release);
  }
  return std::make_unique<Copying>(std::move(job), std::move(what));
}

}  // namespace piper::executor
