// Windows of a token file as batches of a language model.
#pragma once

#include <vector>

#include "apps/gpt/model.hpp"
#include "framework/io/tokens.hpp"

namespace tegula::apps {

// Binds the windows that start at `starts`, one a row: tokens, and as targets the tokens that follow each.
inline void bind_windows(Program& program, const LanguageModel& net, const io::TokenFile& file,
                         const std::vector<std::int64_t>& starts) {
  auto filler = [&file, &starts](std::int64_t shift) -> Filler {
    return [&file, starts, shift](const TileRegion& region, void* data) {
      auto* out = static_cast<std::int32_t*>(data);
      const std::int64_t length = region.extent[1];
      for (std::int64_t row = 0; row < region.extent[0]; ++row, out += length)
        file.copy(starts[region.begin[0] + row] + region.begin[1] + shift,
                  {out, static_cast<std::size_t>(length)});
    };
  };
  program.bind(net.tokens, filler(0)).bind(net.target, filler(1));
}

// Collective: mean of net.judged_loss over so many batches of windows from the beginning of the file (0: all full ones),
// on rank 0, which `look` is shown the results. A file with fewer windows than a batch is read round and round.
inline double mean_loss(Program& program, const LanguageModel& net, const io::TokenFile& file,
                        std::int64_t batches, Runtime& runtime,
                        const std::function<void(const Result&)>& look = {}) {
  const std::int64_t length = net.sequence.extent(), rows = net.batch.extent(),
                     windows = (file.size() - 1) / length;
  if (windows < 1)
    throw std::runtime_error(
        fmt::format("the text to judge by has {} tokens, fewer than a context of {}", file.size(), length));
  const std::int64_t full = std::max<std::int64_t>(windows / rows, 1);
  batches = batches == 0 ? full : std::min(batches, full);
  std::vector<Result> results;
  std::int64_t window = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < rows; ++row) starts.push_back(window++ % windows * length);
    bind_windows(program, net, file, starts);
    results.push_back(program.run());
  }
  double sum = 0;
  if (runtime.rank() == 0)
    for (const Result& result : results) {
      sum += result.value(net.judged_loss);
      if (look) look(result);
    }
  return sum / static_cast<double>(batches);
}

}  // namespace tegula::apps
