// libFuzzer target: any text is either a configuration, which survives being saved and read again, or a
// std::runtime_error. See scripts/fuzz.
#include "framework/io/options.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {
struct Configuration {
  std::int64_t batch = 256;
  double rate = 0.1;
  std::string model = "mlp";
  bool report = false;
  tegula::io::NamedNumbers tile;
  tegula::io::Options options{"program", "A program.", /*quiet=*/true};

  explicit Configuration(const std::string& text) {
    options.add("batch", &batch, "")->check(tegula::io::at_least(1));
    options.add("rate", &rate, "");
    options.add("model", &model, "");
    options.add("report", &report, "");
    options.add("tile", &tile, "");
    options.apply_toml(text, "input");
  }
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string saved = Configuration({reinterpret_cast<const char*>(data), size}).options.toml();
    try {
      if (Configuration(saved).options.toml() != saved) std::abort();
    } catch (const std::runtime_error&) {
      std::abort();
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
