// libFuzzer target: any text is either what a state.json or an index of weights may say or a std::runtime_error, and what was
// read says the same when written and read again. See scripts/fuzz.
#include "framework/io/checkpoint_format.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tegula::io::CheckpointState state = tegula::io::parse_state(text, "input");
    const std::string again = tegula::io::state_text(state);
    const tegula::io::CheckpointState twice = tegula::io::parse_state(again, "again");
    if (twice.step != state.step || twice.updates != state.updates || twice.checksums != state.checksums ||
        tegula::io::state_text(twice) != again)
      std::abort();
  } catch (const std::runtime_error&) {
  }
  try {
    for (const auto& [tensor, file] : tegula::io::parse_weight_map(text, "input"))
      if (file.empty() || file.find('/') != std::string::npos || file == "..") std::abort();
  } catch (const std::runtime_error&) {
  }
  return 0;
}
