// Safetensors files as tensors. The header's rules and errors: safetensors_header.h. Values are
// little-endian, as is this machine; nothing but numbers is ever read (no pickle).
#pragma once

#include <piper/base/file_reader.h>
#include <piper/checkpoint/safetensors_header.h>
#include <piper/files/file_writer.h>
#include <piper/nn/aten.h>
#include <piper/nn/named_tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace piper::checkpoint {

at::ScalarType scalar_type(DType dtype);
// Throws InvalidInput naming the tensor for a type that these files do not hold here.
DType dtype_of(const nn::NamedTensor& tensor);

// An open file. Reading is thread-safe.
class SafetensorsFile {
 public:
  // Reads and checks the header. Throws IoError, SafetensorsError.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_->path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorEntry* find(const std::string& name) const;  // nullptr = none

  // Fills `out` with out.numel() elements from `first_element` of the tensor on, converting between
  // floating types (to a narrower one by rounding); the shape of `out` is the caller's affair.
  // Throws IoError; SafetensorsError when one is floating and the other is not.
  void read(const TensorEntry& tensor, at::Tensor out, int64_t first_element = 0) const;

 private:
  std::unique_ptr<const FileReader> file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

// Writes the tensors one after the other and syncs the file. Order of the data: wider types first
// (so that everything is aligned), then as given: the same input gives the same bytes. Names must
// be distinct. Strided and device tensors are copied one at a time. Throws IoError, InvalidInput
// (type).
files::FileRecord write_safetensors(const std::filesystem::path& path,
                                    const std::vector<nn::NamedTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata = {},
                                    const files::Disk& disk = files::real_disk());

}  // namespace piper::checkpoint
