#include "framework/io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "framework/io/file.hpp"

namespace tegula::io {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

namespace {

using nlohmann::json;

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the format's own limit
constexpr std::array<std::pair<DType, std::string_view>, 6> dtype_names = {{
    {DType::f32, "F32"},
    {DType::f64, "F64"},
    {DType::bf16, "BF16"},
    {DType::f16, "F16"},
    {DType::i32, "I32"},
    {DType::u8, "U8"},
}};

// Dtypes of the format that tiles have not, with the bytes of an element: files of others may hold some.
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 9> foreign_dtypes = {{
    {"BOOL", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"I16", 2},
    {"U16", 2},
    {"U32", 4},
    {"I64", 8},
    {"U64", 8},
}};

struct Entry {
  TensorView view;
  std::string_view foreign;  // the dtype, where it is none of ours
};

std::string_view name_in_file(DType dtype) {
  return std::ranges::find(dtype_names, dtype, &decltype(dtype_names)::value_type::first)->second;
}

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::runtime_error(file + ": not valid safetensors: " + what);
}

// Bytes of a tensor, or nothing where that does not fit 64 bits.
bool byte_size(std::uint64_t element, std::span<const std::int64_t> shape, std::uint64_t& bytes) {
  bytes = element;
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

Entry parse_entry(const std::string& name, const json& entry, std::span<const std::byte> data,
                  const std::string& file) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets") || !entry["dtype"].is_string())
    fail(file, "entry '" + name + "' is not {dtype, shape, data_offsets}");

  const auto& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const auto* dtype = std::ranges::find(dtype_names, std::string_view(dtype_name),
                                        &decltype(dtype_names)::value_type::second);
  const auto* foreign =
      std::ranges::find(foreign_dtypes, dtype_name, &decltype(foreign_dtypes)::value_type::first);
  const bool ours = dtype != dtype_names.end();
  if (!ours && foreign == foreign_dtypes.end())
    fail(file, "'" + name + "' has dtype " + dtype_name + "; known are F32, F64, BF16, F16, I32 and U8");

  std::vector<std::int64_t> shape = integers(entry["shape"], file, "shape of '" + name + "'");
  const auto offsets = integers(entry["data_offsets"], file, "data_offsets of '" + name + "'");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<std::uint64_t>(offsets[1]) > data.size())
    fail(file, "data_offsets of '" + name + "' are not [begin, end] within the " +
                   std::to_string(data.size()) + " bytes of data");
  std::uint64_t expected = 0;
  const auto size = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  if (!byte_size(ours ? size_of(dtype->first) : foreign->second, shape, expected) || expected != size)
    fail(file,
         "'" + name + "' has " + std::to_string(size) + " bytes of data, which its shape does not need");
  return {{name, ours ? dtype->first : DType::u8, std::move(shape),
           data.subspan(static_cast<std::size_t>(offsets[0]), size)},
          ours ? std::string_view() : foreign->first};
}

}  // namespace

SafetensorsHeader safetensors_header(std::span<const TensorView> tensors, const Metadata& metadata) {
  // Wide types first: with an aligned start of data, every tensor is then aligned to its element size.
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return size_of(tensors[i].dtype); });

  SafetensorsHeader header{{}, std::vector<std::uint64_t>(tensors.size()), 0};
  json entries = json::object();
  if (!metadata.empty()) entries["__metadata__"] = metadata;
  for (std::size_t i : order) {
    const TensorView& t = tensors[i];
    std::uint64_t bytes = 0;
    if (!byte_size(size_of(t.dtype), t.shape, bytes))
      throw std::invalid_argument("[safetensors] '" + t.name + "' has a shape that no file can hold");
    if (t.name == "__metadata__" || entries.contains(t.name))
      throw std::invalid_argument("[safetensors] the name '" + t.name + "' is taken");
    header.offsets[i] = header.file_bytes;
    header.file_bytes += bytes;
    entries[t.name] = {{"dtype", name_in_file(t.dtype)},
                       {"shape", t.shape},
                       {"data_offsets", {header.offsets[i], header.file_bytes}}};
  }
  std::string text = entries.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t text_bytes = text.size();
  header.text.assign(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes);
  header.text += text;
  for (std::uint64_t& offset : header.offsets) offset += header.text.size();
  header.file_bytes += header.text.size();
  return header;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  for (const TensorView& t : tensors) {
    std::uint64_t expected = 0;
    if (!byte_size(size_of(t.dtype), t.shape, expected) || expected != t.bytes.size())
      throw std::invalid_argument("[safetensors] '" + t.name + "' has " + std::to_string(t.bytes.size()) +
                                  " bytes, which its shape does not need");
  }
  const SafetensorsHeader header = safetensors_header(tensors, metadata);
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return header.offsets[i]; });

  AtomicFile file(path);
  file.write(header.text);
  for (std::size_t i : order) file.write(tensors[i].bytes);
  file.commit();
}

Safetensors Safetensors::read(const std::filesystem::path& path) {
  return parse(read_file(path), path.string());
}

Safetensors Safetensors::map(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = file->bytes();
  return {std::move(file), bytes, path.string()};
}

Safetensors Safetensors::parse(std::vector<std::byte> file, std::string name) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(file));
  const std::span<const std::byte> bytes = *owner;
  return {std::move(owner), bytes, std::move(name)};
}

Safetensors::Safetensors(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                         std::string name)
    : owner_(std::move(owner)), name_(std::move(name)) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) fail(name_, "shorter than the 8 bytes of the header size");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > max_header_bytes || header_bytes > bytes.size() - sizeof header_bytes)
    fail(name_, "a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                    std::to_string(bytes.size()));
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes;
  const json header = json::parse(text, text + header_bytes, nullptr, /*allow_exceptions=*/false);
  if (header_bytes == 0 || text[0] != '{' || !header.is_object())
    fail(name_, "its header is not a JSON object");

  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [key, entry] : header.items()) {
    if (key != "__metadata__") {
      entries.push_back(parse_entry(key, entry, data, name_));
      continue;
    }
    if (!entry.is_object()) fail(name_, "__metadata__ is not an object");
    for (const auto& [label, value] : entry.items()) {
      if (!value.is_string()) fail(name_, "__metadata__ holds something other than strings");
      metadata_[label] = value.get<std::string>();
    }
  }

  // The data must be exactly the tensors, end to end. (A repeated name, of which JSON keeps the last, is a
  // hole.)
  std::ranges::sort(entries, {}, [](const Entry& e) {
    return std::pair(e.view.bytes.data(), e.view.bytes.size());  // empty ones before what follows them
  });
  const std::byte* end = data.data();
  for (Entry& e : entries) {
    if (e.view.bytes.data() != end)
      fail(name_, "a hole or an overlap before the data of '" + e.view.name + "'");
    end += e.view.bytes.size();
    if (e.foreign.empty())
      tensors_.push_back(std::move(e.view));
    else
      foreign_.emplace(std::move(e.view.name), e.foreign);
  }
  if (end != data.data() + data.size()) fail(name_, "data that belong to no tensor");
}

const TensorView& Safetensors::at(std::string_view name) const {
  for (const TensorView& t : tensors_)
    if (t.name == name) return t;
  if (const auto found = foreign_.find(name); found != foreign_.end())
    throw std::runtime_error(name_ + ": '" + found->first + "' has dtype " + found->second +
                             ", which tiles have not: convert it to F32 or BF16");
  throw std::runtime_error(name_ + ": holds no tensor '" + std::string(name) + "'");
}

}  // namespace tegula::io
