// libFuzzer target: any bytes are either a well-formed IDX array or a std::runtime_error. See scripts/fuzz.
#include "framework/io/idx.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (std::size_t dimensions : {1, 3}) {
    try {
      const auto array = tegula::io::parse_idx(std::as_bytes(std::span(data, size)), "input", dimensions);
      const std::int64_t elements =
          std::accumulate(array.extents.begin(), array.extents.end(), std::int64_t{1}, std::multiplies<>());
      if (array.extents.size() != dimensions || static_cast<std::int64_t>(array.values.size()) != elements)
        std::abort();
    } catch (const std::runtime_error&) {
    }
  }
  return 0;
}
