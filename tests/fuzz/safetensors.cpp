// libFuzzer target: any bytes are either tensors that lie within them or a std::runtime_error, the same whether they are
// in memory or a mapped file. See scripts/fuzz.
#include "framework/io/safetensors.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>

namespace {

// The same bytes as a file. One for all inputs: what was mapped of the one before is gone.
std::filesystem::path file_of(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = ::memfd_create("input", MFD_CLOEXEC);
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bool parsed = false;
  try {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto file = tegula::io::Safetensors::parse({bytes.begin(), bytes.end()}, "input");
    volatile std::byte sink{};  // the address sanitizer watches these reads
    for (const auto& tensor : file.tensors()) {
      for (std::byte b : tensor.bytes) sink = b;
      if (file.at(tensor.name).bytes.size() != tensor.bytes.size()) std::abort();
    }
    parsed = true;
    const auto mapped = tegula::io::Safetensors::map(file_of(data, size));
    for (const auto& tensor : file.tensors())
      if (!std::ranges::equal(mapped.at(tensor.name).bytes, tensor.bytes)) std::abort();
  } catch (const std::runtime_error&) {
    if (parsed) std::abort();
  }
  return 0;
}
