// libFuzzer target: any bytes are either tensors that lie within them or a std::runtime_error. See scripts/fuzz.
#include "framework/io/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto file = tegula::io::Safetensors::parse({bytes.begin(), bytes.end()}, "input");
    volatile std::byte sink{};  // the address sanitizer watches these reads
    for (const auto& tensor : file.tensors()) {
      for (std::byte b : tensor.bytes) sink = b;
      if (file.at(tensor.name).bytes.size() != tensor.bytes.size()) std::abort();
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
