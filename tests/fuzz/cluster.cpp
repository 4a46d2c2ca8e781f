// libFuzzer target: any text is either a cluster whose ranks all have a device and memory or a std::runtime_error. See scripts/fuzz.
#include "framework/simulation/cluster.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tegula::simulation;
  try {
    const Cluster cluster = parse_cluster({reinterpret_cast<const char*>(data), size}, "input");
    for (const Cluster::Seat& seat : cluster.seats(1))
      if (cluster.device(seat).name.empty() || seat.workers < 1 || cluster.memory(seat) <= 0) std::abort();
  } catch (const std::runtime_error&) {
  }
  return 0;
}
