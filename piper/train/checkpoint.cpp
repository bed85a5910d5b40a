#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/checkpoint.h>
#include <piper/train/safetensors.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

// Room for the header of a shard beside its values.
constexpr int64_t kBytesPerHeaderEntry = 256;

int64_t bytes_of(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors)
    bytes += static_cast<int64_t>(tensor.value.nbytes()) + kBytesPerHeaderEntry;
  return bytes;
}

fs::path temporary_name(const fs::path& folder, int64_t step) {
  static std::atomic<int> count{0};
  return folder / fmt::format("{}.tmp-{}-{}", checkpoint_name(step), ::getpid(), count++);
}

}  // namespace

std::vector<NamedTensor> checkpoint_tensors(const std::vector<nn::Parameter>& parameters,
                                            const AdamW& optimizer) {
  std::vector<NamedTensor> tensors = optimizer.state();
  for (const nn::Parameter& parameter : parameters)
    tensors.push_back({"parameter/" + parameter.name, parameter.value});
  return tensors;
}

CheckpointSave::CheckpointSave(fs::path folder, CheckpointIdentity identity, TrainState state)
    : folder_(std::move(folder)),
      temporary_(temporary_name(folder_, state.step)),
      manifest_{.identity = std::move(identity), .state = std::move(state)} {
  std::error_code error;
  fs::create_directories(temporary_, error);
  if (error) throw IoError(temporary_.string() + ": cannot be created: " + error.message());
}

CheckpointSave::~CheckpointSave() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void CheckpointSave::write_shard(Rank rank, const std::vector<NamedTensor>& tensors) noexcept {
  std::string failure = "unknown";
  try {
    require_space(temporary_, bytes_of(tensors), free_bytes(temporary_));
    FileRecord record = write_safetensors(temporary_ / shard_name(rank.value), tensors);
    const std::lock_guard lock(mutex_);
    written_.emplace(rank, std::move(record));
    return;
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
  }
  const std::lock_guard lock(mutex_);
  failures_.emplace(rank, std::move(failure));
}

void CheckpointSave::put_in_place() const {
  const fs::path target = folder_ / checkpoint_name(manifest_.state.step);
  if (::rename(temporary_.c_str(), target.c_str()) == 0) return;
  // A checkpoint of this step is there already (a run that went back): the two change places in one operation.
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      std::error_code ignored;
      fs::remove_all(temporary_, ignored);
      return;
    }
  }
  throw IoError(target.string() + ": cannot be put in place: " + std::strerror(errno));
}

fs::path CheckpointSave::commit() {
  PIPER_CHECK(!committed_);
  std::string problems;
  for (int64_t i = 0; i < manifest_.identity.mesh.world(); ++i) {
    const Rank rank(i);
    const auto failure = failures_.find(rank), none = failures_.end();
    if (failure == none && written_.contains(rank)) continue;
    problems += fmt::format("{}rank {}: {}", problems.empty() ? "" : "\n", i,
                            failure != none ? failure->second : "wrote no shard");
  }
  const auto name = checkpoint_name(manifest_.state.step);
  const auto fail = [&](const std::string& why) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
    throw IoError(fmt::format("{}: not saved; earlier checkpoints are untouched\n{}",
                              (folder_ / name).string(), why));
  };
  if (!problems.empty()) fail(problems);
  manifest_.files.clear();
  for (const auto& [rank, record] : written_) manifest_.files.push_back(record);
  try {
    write_manifest(temporary_, manifest_);
    put_in_place();
    committed_ = true;
  } catch (const IoError& error) {
    fail(error.what());
  }
  sync_folder(folder_);
  return folder_ / name;
}

void read_shard(const FoundCheckpoint& checkpoint, Rank rank,
                const std::vector<NamedTensor>& tensors) {
  const SafetensorsFile file(checkpoint.path / shard_name(rank.value));
  Problems problems(file.path().string());
  std::set<std::string> wanted;
  for (const NamedTensor& tensor : tensors) {
    wanted.insert(tensor.name);
    const TensorEntry* entry = file.find(tensor.name);
    if (entry == nullptr)
      problems.add(fmt::format("tensor '{}' is missing", tensor.name));
    else if (entry->dtype != dtype_of(tensor) || entry->shape != tensor.value.sizes().vec())
      problems.add(fmt::format("tensor '{}' is {} {}; allowed: {} {}", tensor.name,
                               name(entry->dtype), format_shape(entry->shape),
                               name(dtype_of(tensor)), format_shape(tensor.value.sizes().vec())));
  }
  for (const TensorEntry& entry : file.tensors())
    if (!wanted.contains(entry.name))
      problems.add(fmt::format("tensor '{}' is superfluous", entry.name));
  problems.finish();
  for (const NamedTensor& tensor : tensors) file.read(*file.find(tensor.name), tensor.value);
}

}  // namespace piper::train
