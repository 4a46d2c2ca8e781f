// Schedules: in which order the stages of a pipeline work off micro-batches. Small pure functions; an app may write its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tegula {

// What a stage does with a micro-batch. Gradients by weights wait for nobody else, so they may be put off.
enum class Pass : std::uint8_t { forward, input_gradient, weight_gradient };

struct Pipeline {
  int stages = 1;         // parts that the layers are divided into
  int places = 1;         // extent of the mesh dimension that they lie along
  int micro_batches = 1;  // of each rank's share of the batch
};

struct Schedule {
  std::string name;
  // The coordinate along the mesh dimension, in [0, places), where a stage works on a micro-batch. Weights are owned where the
  // first micro-batch is worked on.
  std::function<int(const Pipeline&, int stage, int micro_batch)> place;
  // When: a place works off its parts in this order. Something that depends on others counts as no earlier than those, so
  // that any function gives a valid order; the unit is a pass, the zero the start of the step.
  std::function<double(const Pipeline&, int stage, int micro_batch, Pass pass)> time;
  // Whether a place keeps that order even when something later could begin, as it may where memory does not forbid it. Then what
  // others wait for would come late.
  bool in_order = false;
};

namespace schedules {

// One micro-batch behind the other, forward and backward: gradient accumulation, with no overlap of stages.
Schedule sequential();
// All forward, then all backward (Huang et al. 2019). All micro-batches are alive at once.
Schedule gpipe();
// One forward, one backward (Narayanan et al. 2019, PipeDream-flush): at most stages - s alive at stage s.
Schedule one_forward_one_backward();
// The same with several stages on each place, dealt out in turn, in groups of as many micro-batches as there are places
// (Narayanan et al. 2021, Megatron-LM): a shorter bubble for more messages.
Schedule interleaved();
// 1F1B with gradients by weights put off by s micro-batches at stage s, into the bubble (Qi et al. 2024, ZB-H1): as many alive
// as 1F1B has at its first stage.
Schedule zero_bubble_h1();
// With twice as many micro-batches under way, so that the bubble goes altogether (Qi et al. 2024, ZB-H2).
Schedule zero_bubble_h2();
// Two pipelines in opposite directions, micro-batches in turn (Li and Hoefler 2021). Weights stay where the first pipeline has
// them and travel to the second.
Schedule chimera();

// By name: sequential, gpipe, 1f1b, interleaved, zero-bubble-h1, zero-bubble-h2, chimera. Throws std::invalid_argument for others.
Schedule find(std::string_view name);
std::vector<std::string> names();

}  // namespace schedules
}  // namespace tegula
