#include "framework/io/safetensors.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

std::vector<std::byte> file(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const std::uint64_t header_bytes = header.size();
  std::memcpy(bytes.data(), &header_bytes, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string error(const std::string& header, std::size_t data_bytes) {
  return message_of([&] { Safetensors::parse(file(header, data_bytes), "w"); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST_CASE("what is written is read back, wide types first and aligned") {
  const TemporaryFolder folder;
  const std::vector<float> weight{1, 2, 3, 4, 5, 6};
  const std::vector<double> sum{7};
  const std::vector<std::uint8_t> mask{8, 9, 10};
  const std::vector<TensorView> tensors{
      {"mask", DType::u8, {3}, std::as_bytes(std::span(mask))},
      {"fc.weight", DType::f32, {2, 3}, std::as_bytes(std::span(weight))},
      {"sum", DType::f64, {}, std::as_bytes(std::span(sum))},
      {"empty", DType::i32, {0, 4}, {}},
  };
  write_safetensors(folder / "w.safetensors", tensors, {{"step", "12"}});

  const Safetensors read = Safetensors::read(folder / "w.safetensors");
  CHECK(read.metadata() == Metadata{{"step", "12"}});
  CHECK(read.tensors().size() == 4);
  CHECK(read.tensors()[0].name == "sum");
  const TensorView& view = read.at("fc.weight");
  CHECK(view.dtype == DType::f32);
  CHECK(view.shape == std::vector<std::int64_t>{2, 3});
  CHECK(std::memcmp(view.bytes.data(), weight.data(), view.bytes.size()) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(view.bytes.data()) % 4 == 0);
  CHECK(contains(message_of([&] { (void)read.at("fc.bias"); }), "w.safetensors: holds no tensor 'fc.bias'"));
}

TEST_CASE("a mapped file shows what a read one does, and outlives its name") {
  const TemporaryFolder folder;
  const std::vector<float> weight{1, 2, 3};
  const std::vector<std::uint8_t> mask{8, 9};
  const std::vector<TensorView> tensors{{"mask", DType::u8, {2}, std::as_bytes(std::span(mask))},
                                        {"weight", DType::f32, {3}, std::as_bytes(std::span(weight))}};
  write_safetensors(folder / "w", tensors, {{"format", "pt"}});
  const SafetensorsHeader header = safetensors_header(tensors, {{"format", "pt"}});
  const std::string bytes = contents(folder / "w");
  CHECK(bytes.starts_with(header.text));
  CHECK(bytes.size() == header.file_bytes);
  CHECK(bytes[header.offsets[0] + 1] == 9);

  const Safetensors copy = [&] {
    const Safetensors mapped = Safetensors::map(folder / "w");
    CHECK(mapped.name() == (folder / "w").string());
    return mapped;
  }();
  std::filesystem::remove(folder / "w");
  CHECK(std::memcmp(copy.at("weight").bytes.data(), weight.data(), 12) == 0);
  CHECK(contains(message_of([&] { Safetensors::map(folder / "w"); }), "cannot read: No such file"));
  CHECK(contains(message_of([&] { Safetensors::map(folder.path()); }), "not a regular file"));
  { std::ofstream(folder / "empty"); }
  CHECK(contains(message_of([&] { Safetensors::map(folder / "empty"); }), "shorter than the 8 bytes"));
  const std::vector<TensorView> vast{{"x", DType::f64, {INT64_MAX, 2}, {}}};
  CHECK_THROWS_AS(safetensors_header(vast), std::invalid_argument);
}

TEST_CASE("dtypes of the format that tiles have not are checked, and left alone") {
  const std::string header =
      "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("h", "I16", "[2]", "[4,8]") + "}";
  const Safetensors read = Safetensors::parse(file(header, 8), "w");
  CHECK(read.tensors().size() == 1);
  CHECK(read.foreign().at("h") == "I16");
  CHECK(message_of([&] { (void)read.at("h"); }) ==
        "w: 'h' has dtype I16, which tiles have not: convert it to F32 or BF16");
  CHECK(contains(error("{" + entry("h", "I64", "[2]", "[0,8]") + "}", 8), "which its shape does not need"));
}

TEST_CASE("views that contradict themselves are refused") {
  const std::vector<float> x(4);
  const TensorView good{"x", DType::f32, {4}, std::as_bytes(std::span(x))};
  TensorView wrong = good;
  wrong.shape = {5};
  const std::vector<TensorView> size{wrong}, repeated{good, good};
  CHECK_THROWS_AS(write_safetensors("/nowhere/x", size), std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors("/nowhere/x", repeated), std::invalid_argument);
}

TEST_CASE("files that break the format are refused") {
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  CHECK(error("{" + a + "}", 8).empty());
  CHECK(error("{" + a + "}   ", 8).empty());
  CHECK(contains(error("{" + a + "}", 7), "data_offsets of 'a' are not [begin, end] within the 7 bytes"));
  CHECK(contains(error("{" + a + "}", 9), "belong to no tensor"));
  CHECK(contains(error("{" + a + "," + entry("b", "U8", "[4]", "[4,8]") + "}", 8),
                 "a hole or an overlap before"));
  CHECK(contains(error("{" + a + "," + entry("b", "U8", "[4]", "[10,14]") + "}", 14),
                 "a hole or an overlap before"));
  CHECK(contains(error("{" + a + "," + entry("a", "U8", "[4]", "[8,12]") + "}", 12),
                 "a hole or an overlap before"));
  CHECK(contains(error("{" + entry("a", "F32", "[3]", "[0,8]") + "}", 8), "which its shape does not need"));
  CHECK(contains(error("{" + entry("a", "F8", "[8]", "[0,8]") + "}", 8), "dtype F8; known are F32"));
  CHECK(contains(error("{" + entry("a", "F32", "[-2]", "[0,8]") + "}", 8), "other than integers >= 0"));
  CHECK(contains(error("{" + entry("a", "F32", "[4294967296,4294967296,4294967296]", "[0,8]") + "}", 8),
                 "shape"));
  CHECK(contains(error("{" + entry("a", "F32", "[2]", "[8,0]") + "}", 8), "data_offsets of 'a'"));
  CHECK(contains(error(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "entry 'a' is not"));
  CHECK(contains(error(R"({"__metadata__":{"a":1}})", 0), "other than strings"));
  CHECK(contains(error("[]", 0), "not a JSON object"));
  CHECK(contains(error("{", 0), "not a JSON object"));
  CHECK(contains(error("", 0), "not a JSON object"));
  CHECK(contains(message_of([] { Safetensors::parse(std::vector<std::byte>(7), "w"); }),
                 "w: not valid safetensors"));
  std::vector<std::byte> huge = file("{}", 0);
  huge[7] = std::byte{0x7f};
  CHECK(contains(message_of([&] { Safetensors::parse(huge, "w"); }), "in a file of 10"));
}

}  // namespace
}  // namespace tegula::io
