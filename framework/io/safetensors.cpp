#include "framework/io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "framework/io/file.hpp"

namespace tegula::io {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

namespace {

using nlohmann::json;

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the format's own limit
constexpr std::array<std::pair<DType, std::string_view>, 5> dtype_names = {{
    {DType::f32, "F32"},
    {DType::f64, "F64"},
    {DType::bf16, "BF16"},
    {DType::i32, "I32"},
    {DType::u8, "U8"},
}};

std::string_view name_in_file(DType dtype) {
  return std::ranges::find(dtype_names, dtype, &decltype(dtype_names)::value_type::first)->second;
}

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::runtime_error(file + ": not valid safetensors: " + what);
}

// Bytes of a tensor, or nothing where that does not fit 64 bits.
bool byte_size(DType dtype, std::span<const std::int64_t> shape, std::uint64_t& bytes) {
  bytes = size_of(dtype);
  bool fits = true;
  for (std::int64_t extent : shape)
    fits = fits && extent >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes);
  return fits;
}

// The non-negative integers of a JSON array.
std::vector<std::int64_t> integers(const json& list, const std::string& file, const std::string& what) {
  if (!list.is_array()) fail(file, what + " is not an array");
  std::vector<std::int64_t> values;
  for (const json& item : list) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > INT64_MAX)
      fail(file, what + " holds something other than integers >= 0");
    values.push_back(item.get<std::int64_t>());
  }
  return values;
}

TensorView parse_entry(const std::string& name, const json& entry, std::span<const std::byte> data,
                       const std::string& file) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets") || !entry["dtype"].is_string())
    fail(file, "entry '" + name + "' is not {dtype, shape, data_offsets}");

  const auto& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const auto* dtype = std::ranges::find(dtype_names, std::string_view(dtype_name),
                                        &decltype(dtype_names)::value_type::second);
  if (dtype == dtype_names.end())
    fail(file, "'" + name + "' has dtype " + dtype_name + "; known are F32, F64, BF16, I32 and U8");

  std::vector<std::int64_t> shape = integers(entry["shape"], file, "shape of '" + name + "'");
  const auto offsets = integers(entry["data_offsets"], file, "data_offsets of '" + name + "'");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<std::uint64_t>(offsets[1]) > data.size())
    fail(file, "data_offsets of '" + name + "' are not [begin, end] within the " +
                   std::to_string(data.size()) + " bytes of data");
  std::uint64_t expected = 0;
  const auto size = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  if (!byte_size(dtype->first, shape, expected) || expected != size)
    fail(file,
         "'" + name + "' has " + std::to_string(size) + " bytes of data, which its shape does not need");
  return {name, dtype->first, std::move(shape), data.subspan(static_cast<std::size_t>(offsets[0]), size)};
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  // Wide types first: with an aligned start of data, every tensor is then aligned to its element size.
  std::vector<const TensorView*> order;
  std::set<std::string_view> names;
  for (const TensorView& t : tensors) {
    std::uint64_t expected = 0;
    if (!byte_size(t.dtype, t.shape, expected) || expected != t.bytes.size())
      throw std::invalid_argument("[safetensors] '" + t.name + "' has " + std::to_string(t.bytes.size()) +
                                  " bytes, which its shape does not need");
    if (t.name == "__metadata__" || !names.insert(t.name).second)
      throw std::invalid_argument("[safetensors] the name '" + t.name + "' is taken");
    order.push_back(&t);
  }
  std::ranges::stable_sort(order, std::greater{}, [](const TensorView* t) { return size_of(t->dtype); });

  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorView* t : order) {
    header[t->name] = {{"dtype", name_in_file(t->dtype)},
                       {"shape", t->shape},
                       {"data_offsets", {offset, offset + t->bytes.size()}}};
    offset += t->bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t text_bytes = text.size();

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&text_bytes, 1)));
  file.write(text);
  for (const TensorView* t : order) file.write(t->bytes);
  file.commit();
}

Safetensors Safetensors::read(const std::filesystem::path& path) {
  return parse(read_file(path), path.string());
}

Safetensors Safetensors::parse(std::vector<std::byte> file, std::string name) {
  Safetensors result;
  result.file_ = std::move(file);
  result.name_ = std::move(name);
  const std::span<const std::byte> bytes = result.file_;

  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) fail(result.name_, "shorter than the 8 bytes of the header size");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > max_header_bytes || header_bytes > bytes.size() - sizeof header_bytes)
    fail(result.name_, "a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                           std::to_string(bytes.size()));
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes;
  const json header = json::parse(text, text + header_bytes, nullptr, /*allow_exceptions=*/false);
  if (header_bytes == 0 || text[0] != '{' || !header.is_object())
    fail(result.name_, "its header is not a JSON object");

  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);
  for (const auto& [key, entry] : header.items()) {
    if (key != "__metadata__") {
      result.tensors_.push_back(parse_entry(key, entry, data, result.name_));
      continue;
    }
    if (!entry.is_object()) fail(result.name_, "__metadata__ is not an object");
    for (const auto& [label, value] : entry.items()) {
      if (!value.is_string()) fail(result.name_, "__metadata__ holds something other than strings");
      result.metadata_[label] = value.get<std::string>();
    }
  }

  // The data must be exactly the tensors, end to end. (A repeated name, of which JSON keeps the last, is a
  // hole.)
  std::ranges::sort(result.tensors_, {}, [](const TensorView& t) {
    return std::pair(t.bytes.data(), t.bytes.size());  // empty ones before what follows them
  });
  const std::byte* end = data.data();
  for (const TensorView& t : result.tensors_) {
    if (t.bytes.data() != end) fail(result.name_, "a hole or an overlap before the data of '" + t.name + "'");
    end += t.bytes.size();
  }
  if (end != data.data() + data.size()) fail(result.name_, "data that belong to no tensor");
  return result;
}

const TensorView& Safetensors::at(std::string_view name) const {
  for (const TensorView& t : tensors_)
    if (t.name == name) return t;
  throw std::runtime_error(name_ + ": holds no tensor '" + std::string(name) + "'");
}

}  // namespace tegula::io
