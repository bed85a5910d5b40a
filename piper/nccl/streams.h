// These destroy their stream or event with the object, which belongs to the device that was current
// when it was made.
#pragma once

#include <piper/nccl/library.h>

#include <utility>

namespace piper::nccl {

class Stream {
 public:
  explicit Stream(const Library& library) : library_(&library) {
    library.check(library.cuda.stream_create_with_flags(&stream_, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
  }
  ~Stream() { library_->cuda.stream_destroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  const Library* library_;
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const Library& library) : library_(&library) {
    library.check(library.cuda.event_create_with_flags(&event_, cudaEventDisableTiming),
                  "cudaEventCreateWithFlags");
  }
  ~Event() {
    if (event_ != nullptr) library_->cuda.event_destroy(event_);
  }
  Event(Event&& other) noexcept
      : library_(other.library_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream) {
    library_->check(library_->cuda.event_record(event_, stream), "cudaEventRecord");
  }
  // What is put into the stream from now on waits for the last record.
  void hold_back(cudaStream_t stream) const {
    library_->check(library_->cuda.stream_wait_event(stream, event_, 0), "cudaStreamWaitEvent");
  }
  // Whether the stream has come to the last record.
  bool reached() const {
    const cudaError_t status = library_->cuda.event_query(event_);
    if (status == cudaErrorNotReady) return false;
    library_->check(status, "cudaEventQuery");
    return true;
  }

 private:
  const Library* library_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace piper::nccl
