#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/checkpoint/tensor_check.h>
#include <piper/files/output.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

// Room for the header of a shard beside its values.
constexpr int64_t kBytesPerHeaderEntry = 256;

fs::path temporary_name(const fs::path& folder, int64_t step, const std::string& token) {
  static std::atomic<int> count{0};
  if (!token.empty()) return folder / fmt::format("{}.tmp-{}", checkpoint_name(step), token);
  return folder / fmt::format("{}.tmp-{}-{}", checkpoint_name(step), ::getpid(), count++);
}

std::string parting_name(int64_t process) { return fmt::format("process-{:05}.json", process); }

}  // namespace

int64_t shard_bytes(const std::vector<nn::NamedTensor>& tensors) {
  int64_t bytes = kBytesPerHeaderEntry;
  for (const nn::NamedTensor& tensor : tensors)
    bytes +=
        static_cast<int64_t>(tensor.value.nbytes() + tensor.name.size()) + kBytesPerHeaderEntry;
  return bytes;
}

CheckpointSave::CheckpointSave(fs::path folder, CheckpointIdentity identity, TrainState state,
                               files::Disk disk, const std::string& token)
    : folder_(std::move(folder)),
      temporary_(temporary_name(folder_, state.step, token)),
      manifest_{.identity = std::move(identity), .state = std::move(state)},
      disk_(std::move(disk)) {
  files::make_folders(temporary_);
}

CheckpointSave::~CheckpointSave() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void CheckpointSave::require_space(int64_t bytes) {
  try {
    files::require_space(folder_, bytes, disk_.free_bytes(folder_));
  } catch (const IoError& error) {
    give_up(error.what());
  }
}

void CheckpointSave::write_shard(Rank rank, const std::vector<nn::NamedTensor>& tensors) noexcept {
  std::string failure = "unknown";
  try {
    std::map<std::string, std::string> hashes;
    for (const nn::NamedTensor& tensor : tensors)
      hashes.emplace(tensor.name, tensor_hash_text(tensor.value));
    files::FileRecord record =
        write_safetensors(temporary_ / shard_name(rank.value), tensors, {}, disk_);
    record.tensors = std::move(hashes);
    const std::lock_guard lock(mutex_);
    written_.emplace(rank, std::move(record));
    return;
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
  }
  report_failure(rank, std::move(failure));
}

void CheckpointSave::report_failure(Rank rank, std::string cause) noexcept {
  const std::lock_guard lock(mutex_);
  failures_.emplace(rank, std::move(cause));
}

void CheckpointSave::hand_over(int64_t process) {
  committed_ = true;
  Json written = Json::array(), failures = Json::array();
  for (const auto& [rank, record] : written_)
    written.push_back({{"rank", rank.value}, {"file", to_json(record)}});
  for (const auto& [rank, cause] : failures_)
    failures.push_back({{"rank", rank.value}, {"cause", cause}});
  files::write_json_file(temporary_ / parting_name(process),
                         {{"written", written}, {"failures", failures}});
}

void CheckpointSave::collect(int64_t num_processes, double timeout_seconds,
                             const std::function<bool()>& give_up) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  for (int64_t process = 1; process < num_processes; ++process) {
    const fs::path path = temporary_ / parting_name(process);
    while (!fs::exists(path) && Clock::now() < end && !give_up())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (!fs::exists(path)) continue;
    const Json parting = read_json_file(path);
    for (const Json& entry : parting.at("written"))
      written_.emplace(Rank(entry.at("rank").get<int64_t>()),
                       parse_file_record(entry.at("file"), path.string()));
    for (const Json& entry : parting.at("failures"))
      failures_.emplace(Rank(entry.at("rank").get<int64_t>()), entry.at("cause"));
    fs::remove(path);
  }
}

void CheckpointSave::put_in_place() const {
  const fs::path target = folder_ / checkpoint_name(manifest_.state.step);
  if (::rename(temporary_.c_str(), target.c_str()) == 0) return;
  // A checkpoint of this step is there already (a run that went back): the two change places in one
  // operation.
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      std::error_code ignored;
      fs::remove_all(temporary_, ignored);
      return;
    }
  }
  throw IoError(target.string() + ": cannot be put in place: " + std::strerror(errno));
}

void CheckpointSave::give_up(const std::string& why) const {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  throw IoError(fmt::format("{}: not saved; earlier checkpoints are untouched; {}",
                            (folder_ / checkpoint_name(manifest_.state.step)).string(), why));
}

fs::path CheckpointSave::commit() {
  PIPER_CHECK(!committed_);
  std::string problems;
  for (int64_t i = 0; i < manifest_.identity.mesh.world(); ++i) {
    const Rank rank(i);
    const auto failure = failures_.find(rank), none = failures_.end();
    if (failure == none && written_.contains(rank)) continue;
    problems += fmt::format("{}rank {}: {}", problems.empty() ? "" : "; ", i,
                            failure != none ? failure->second : "wrote no shard");
  }
  if (!problems.empty()) give_up(problems);
  manifest_.files.clear();
  for (const auto& [rank, record] : written_) manifest_.files.push_back(record);
  try {
    write_manifest(temporary_, manifest_, disk_);
    put_in_place();
    committed_ = true;
  } catch (const IoError& error) {
    give_up(error.what());
  }
  files::sync_folder(folder_);
  return folder_ / checkpoint_name(manifest_.state.step);
}

}  // namespace piper::checkpoint
