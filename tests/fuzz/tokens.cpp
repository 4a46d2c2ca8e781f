// libFuzzer target: any bytes are either a token file, all of whose tokens can be read or are refused, or a
// std::runtime_error. See scripts/fuzz.
#include "framework/io/tokens.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = ::memfd_create("input", 0);
  if (::ftruncate(descriptor, static_cast<off_t>(size)) < 0 ||
      ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const auto file = tegula::io::TokenFile::open("/proc/self/fd/" + std::to_string(descriptor));
    if (file.size() > static_cast<std::int64_t>(size) / 2) std::abort();
    try {
      file.verify();
    } catch (const std::runtime_error&) {
    }
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.size()));
    file.copy(0, tokens);
    for (std::int32_t id : tokens)
      if (id < 0 || id >= file.vocabulary()) std::abort();
  } catch (const std::runtime_error&) {
  }
  return 0;
}
