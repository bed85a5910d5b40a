#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/checkpoint/safetensors.h>
#include <tests/switches.h>
#include <tests/test_folder.h>

namespace piper::checkpoint {
namespace {

std::vector<nn::NamedTensor> samples() {
  at::manual_seed(1);
  return {{"bytes", at::arange(0, 5, at::kByte)},
          {"half", at::randn({3}).to(at::kHalf)},
          {"float", at::randn({2, 3})},
          {"brain", at::randn({2, 2}).to(at::kBFloat16)},
          {"double", at::randn({4, 1}, at::kDouble)},
          {"scalar", at::tensor(7.5)},
          {"int", at::arange(-2, 3, at::kInt)},
          {"long", at::tensor({INT64_MIN, INT64_MAX}, at::kLong)},
          {"none", at::zeros({0, 3})},
          {"strided", at::randn({3, 4}).t()}};
}

TEST_CASE("every type, an empty and a strided tensor come back bit by bit") {
  const testing::TestFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const auto tensors = samples();
  const files::FileRecord record = write_safetensors(path, tensors, {{"format", "pt"}});
  CHECK(record.name == "x.safetensors");
  CHECK(record.bytes == static_cast<int64_t>(std::filesystem::file_size(path)));
  CHECK(record.sha256 == files::sha256_of_file(path));
  const SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.tensors().size() == tensors.size());
  CHECK(file.find("absent") == nullptr);
  for (const nn::NamedTensor& tensor : tensors) {
    CAPTURE(tensor.name);
    const TensorEntry* entry = file.find(tensor.name);
    REQUIRE(entry != nullptr);
    CHECK(entry->begin % size_bytes(entry->dtype) == 0);
    at::Tensor back = at::empty(tensor.value.sizes(), tensor.value.options());
    file.read(*entry, back);
    CHECK(at::equal(back, tensor.value));
  }
  CHECK(write_safetensors(folder.path() / "y.safetensors", tensors, {{"format", "pt"}}).sha256 ==
        record.sha256);
}

TEST_CASE("reading converts floating types, fills strided views and takes a part of a tensor") {
  const testing::TestFolder folder;
  const auto tensors = samples();
  write_safetensors(folder.path() / "x.safetensors", tensors);
  const SafetensorsFile file(folder.path() / "x.safetensors");
  at::Tensor wide = at::zeros({2, 2}, at::kDouble);
  file.read(*file.find("brain"), wide);
  CHECK(at::equal(wide, tensors[3].value.to(at::kDouble)));
  at::Tensor columns = at::zeros({3, 4});
  file.read(*file.find("float"), columns.slice(1, 1, 3).t());
  CHECK(at::equal(columns.slice(1, 1, 3).t(), tensors[2].value));
  CHECK(columns.select(1, 0).abs().sum().item<float>() == 0);
  at::Tensor row = at::zeros({3});
  file.read(*file.find("float"), row, 3);
  CHECK(at::equal(row, tensors[2].value[1]));
  try {
    file.read(*file.find("long"), at::zeros({2}));
    FAIL("an integer tensor was read as floating");
  } catch (const SafetensorsError& error) {
    CHECK(error.tensor() == "long");
    CHECK(std::string(error.what()).find("is of type I64; a tensor of type Float is wanted") !=
          std::string::npos);
  }
}

TEST_CASE("a file cut anywhere is refused") {
  const testing::TestFolder folder;
  write_safetensors(folder.path() / "x.safetensors", samples());
  const std::string bytes = read_text_file(folder.path() / "x.safetensors");
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 64) {
    CAPTURE(size);
    CHECK_THROWS_AS(SafetensorsFile(folder.write("cut.safetensors", bytes.substr(0, size))),
                    SafetensorsError);
  }
  CHECK_THROWS_AS(SafetensorsFile(folder.write("long.safetensors", bytes + "x")), SafetensorsError);
  CHECK_THROWS_AS(SafetensorsFile(folder.path() / "absent.safetensors"), IoError);
  CHECK_THROWS_AS(SafetensorsFile(folder.path()), InvalidInput);
}

TEST_CASE("a tensor of a type that the format lacks here is refused by name") {
  const testing::TestFolder folder;
  CHECK_THROWS_WITH_AS(
      write_safetensors(folder.path() / "x", {{"flags", at::zeros({2}, at::kBool)}}),
      "tensor 'flags' is of type Bool; allowed: F64, F32, F16, BF16, I64, I32, U8", InvalidInput);
}

TEST_CASE(
    "a failing write is an error that names the path; a full disk says bytes needed and free") {
  CHECK_THROWS_WITH_AS(files::FileWriter("/nonexistent/x"),
                       "/nonexistent/x: cannot be created: No such file or directory", IoError);
  CHECK_NOTHROW(files::require_space("/d", 10, 10));
  CHECK_THROWS_WITH_AS(files::require_space("/d", 3 << 20, 1 << 20),
                       "/d: the disk is full: 3.00 MiB (3145728 bytes) are needed, 1.00 MiB "
                       "(1048576 bytes) are free",
                       IoError);
  if (!std::filesystem::exists("/dev/full"))
    return testing::skip_case("there is no /dev/full: a write to a full device");
  files::FileWriter writer("/dev/full", 100);  // a device on which every write finds no space left
  try {
    writer.write("x");
    FAIL("a write to a full device succeeded");
  } catch (const IoError& error) {
    CHECK(std::string(error.what())
              .starts_with("/dev: the disk is full: 100 B (100 bytes) are needed, "));
  }
}

}  // namespace
}  // namespace piper::checkpoint
