// libFuzzer target: any text is either a file of StarPU's reader of traces or a std::runtime_error that names file and line, and
// what was read is within its bounds. See scripts/fuzz.
#include "apps/trace/starpu_files.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace {

void check(bool good) {
  if (!good) std::abort();
}

void parse(char kind, std::string_view text) {
  using namespace tegula::trace;
  if (kind % 3 == 0)
    for (const RawTask& task : parse_tasks(text, "f"))
      check(task.rank >= -1 && task.worker >= -1 && std::isfinite(task.start) && std::isfinite(task.end) &&
            std::isfinite(task.flops) && task.needs.size() <= text.size());
  if (kind % 3 == 1)
    for (const RawMessage& message : parse_messages(text, "f"))
      check(message.from >= 0 && message.to >= 0 && std::isfinite(message.start) &&
            std::isfinite(message.end));
  if (kind % 3 == 2) {
    const RawActivity activity = parse_activity(text, "f");
    for (const auto& [key, thread] : activity.threads)
      for (const RawChange& change : thread.changes)
        check(key.first == thread.rank && std::isfinite(change.time));
    for (const auto& [key, memory] : activity.memory) check(memory.time.size() == memory.bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(static_cast<char>(data[0] & 3), {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const std::runtime_error& error) {
    check(std::string_view(error.what()).starts_with("f:"));
  }
  return 0;
}
