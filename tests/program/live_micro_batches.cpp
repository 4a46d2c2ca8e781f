// How many micro-batches a stage keeps activations of while a pipeline runs: counted by the kernels of the layers themselves,
// on four ranks, and compared with what the literature says of each schedule.
//
// A micro-batch is alive on a stage from the start of its forward task to the end of the last gradient task that reads what
// the layer read or made of it.
//
//     live_micro_batches WORKERS
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "framework/graph/ops.hpp"
#include "framework/program/program.hpp"
#include "layers/layers.hpp"

using namespace tegula;

namespace {

constexpr int stages = 4, width = 3;

// A layer on a stage of it, and the number of a micro-batch.
using Work = std::pair<int, int>;

// What the kernels of this rank report.
class Observer {
 public:
  explicit Observer(std::map<Work, int> readers) : readers_(std::move(readers)) {}

  void forward_starts(Work work) {
    std::scoped_lock lock(mutex_);
    if (!live_.try_emplace(work, readers_.at(work)).second)
      throw std::logic_error("a micro-batch begins before gradients have left it in the step before");
    most_ = std::max(most_, live_.size());
    changed_.notify_all();
  }
  void gradient_ends(Work work) {
    std::scoped_lock lock(mutex_);
    if (--live_.at(work) == 0) live_.erase(work);
  }
  // Gradients of the last layer, from which all others come, wait for this.
  void wait_for_gate() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void gate(bool open) {
    std::scoped_lock lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  // False where that many are not reached in a minute.
  bool wait_until_alive(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return live_.size() >= count; });
  }
  int most() {
    std::scoped_lock lock(mutex_);
    return static_cast<int>(most_);
  }
  bool nothing_alive() {
    std::scoped_lock lock(mutex_);
    return live_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Work, int> readers_, live_;  // gradient tasks: that there are, that have not ended
  std::size_t most_ = 0;
  bool open_ = false;
};

Observer* observer = nullptr;  // of the program that runs: a kernel is given nothing but its tiles

enum class Part : std::uint8_t { forward, by_input, by_weight };

}  // namespace

namespace tegula {

// y = tanh(w x) for x (rows, cols), w (cols). With dy, the gradient by y, its other parts are:
//   forward    (x, w)      y
//   by_input   (y, w, dy)  w (1 - y^2) dy
//   by_weight  (x, y, dy)  x (1 - y^2) dy, to be summed over rows
struct ObservedLayer {
  static constexpr std::string_view name = "observed_layer";
  using dtypes = Types<float>;
  std::int32_t rows, cols, layer, micro_batch;
  Part part;

  std::array<std::int64_t, 4> extents(DType) const {
    const std::int64_t all = std::int64_t{rows} * cols;
    return {all, part == Part::by_weight ? all : cols, has(2) ? all : 0, all};
  }
  bool has(int operand) const { return operand != 2 || part != Part::forward; }
  double flops() const { return 20.0 * rows * cols; }
  static std::vector<ObservedLayer> samples() { return {}; }

  void reference(In<double> a, In<double> b, Maybe<double> dy, Out<double> out) const {
    compute(a, b, dy, out);
  }
  template <class T>
  void cpu(In<T> a, In<T> b, Maybe<T> dy, Out<T> out) const {
    if (part == Part::forward) observer->forward_starts({layer, micro_batch});
    if (part != Part::forward && layer == stages - 1) observer->wait_for_gate();
    compute(a, b, dy, out);
    if (part != Part::forward) observer->gradient_ends({layer, micro_batch});
  }

 private:
  template <class A, class B, class D, class O>
  void compute(A a, B b, D dy, O out) const {
    for (int i = 0; i < rows * cols; ++i) switch (part) {
        case Part::forward:
          out[i] = std::tanh(a[i] * b[i % cols]);
          break;
        case Part::by_input:
          out[i] = b[i % cols] * (1 - a[i] * a[i]) * dy[i];
          break;
        case Part::by_weight:
          out[i] = a[i] * (1 - b[i] * b[i]) * dy[i];
          break;
      }
  }
};

}  // namespace tegula

namespace {

const Register<ObservedLayer> registered;

struct Attributes {
  int layer;
  Part part;
};

TaskSpec task(const Node& node, const TileRange& range) {
  const Axes& axes = node.outputs[0].axes();
  const auto& [layer, part] = node.as<Attributes>();
  return TaskSpec::of(ObservedLayer{.rows = static_cast<int>(range.extent(axes[0])),
                                    .cols = static_cast<int>(range.extent(axes[1])),
                                    .layer = layer,
                                    .micro_batch = static_cast<int>(range.tile(axes[0])),
                                    .part = part},
                      node.outputs[0].dtype());
}

const Semantics gradient_semantics{.name = "observed_gradient", .task = task};

const Semantics forward_semantics{
    .name = "observed_layer",
    .task = task,
    .gradient = [](const Node& node, std::span<const Tensor> outputs) {
      const Tensor &x = node.inputs[0], &w = node.inputs[1], &y = node.outputs[0];
      const Tensor dy = broadcast_to(outputs[0], y.axes());
      const auto emit = [&](Part part, const Tensor& a, const Tensor& b) {
        return x.graph().emit(gradient_semantics, Attributes{node.as<Attributes>().layer, part}, {a, b, dy},
                              {{y.dtype(), y.axes()}})[0];
      };
      return std::vector<Tensor>{
          emit(Part::by_input, y, w), sum(emit(Part::by_weight, x, y), {y.axes()[0]}), {}};
    }};

// One layer on each stage, trained with micro-batches of two rows.
struct Network {
  Graph graph;
  Axis batch, column = graph.axis("column", width);
  Tensor x, loss;
  std::vector<std::pair<std::string, int>> layers;

  explicit Network(int micro_batches) : batch(graph.axis("batch", std::int64_t{2} * micro_batches)) {
    x = graph.input("x", f32, {batch, column});
    Tensor y = x;
    layers::Parameters parameters;
    for (int s = 0; s < stages; ++s) {
      layers.emplace_back("layer" + std::to_string(s), s);
      const Graph::Scope scope(graph, layers.back().first);
      parameters.push_back(graph.state(layers.back().first, f32, {column}, Initializer::fill(0.5)));
      y = graph.emit(forward_semantics, Attributes{s, Part::forward}, {y, parameters.back(), {}},
                     {{f32, y.axes()}})[0];
    }
    loss = mean(y);
    layers::sgd(graph, loss, parameters);
  }
};

// How many gradient tasks of this rank read what a layer keeps of a micro-batch.
std::map<Work, int> gradient_readers(const Listing& listing) {
  std::map<Work, int> readers;
  for (const Instruction& instruction : listing.instructions) {
    if (instruction.kind != Instruction::Kind::task || instruction.spec.op != &op_info<ObservedLayer>())
      continue;
    const auto& op = *reinterpret_cast<const ObservedLayer*>(instruction.spec.attributes.data());
    readers[{op.layer, op.micro_batch}] += op.part != Part::forward;
  }
  return readers;
}

struct Bound {
  std::string schedule;
  int most;       // micro-batches alive on this stage
  bool attained;  // by forward passes alone, before any gradient
};

std::vector<Bound> bounds(int stage, int micro_batches) {
  return {{"sequential", 1, true},
          {"gpipe", micro_batches, true},                                      // Huang et al. 2019
          {"1f1b", std::min(micro_batches, stages - stage), true},             // Narayanan et al. 2019
          {"zero-bubble-h1", std::min(micro_batches, stages), false},          // Qi et al. 2024
          {"zero-bubble-h2", std::min(micro_batches, 2 * stages - 1), false},  // the same
          {"chimera", std::min(micro_batches, stages + 1), false}};            // Li and Hoefler 2021
}

void measure(const Bound& bound, int micro_batches, Runtime& runtime) {
  Network network(micro_batches);
  Plan plan;
  plan.tile(network.batch, 2)
      .mesh({{"stage", stages}})
      .stages("stage", network.layers)
      .micro_batches(network.batch, schedules::find(bound.schedule));
  Program program = compile(network.graph, plan, runtime, {.outputs = {network.loss}});
  program.bind(network.x, std::vector<float>(network.x.elements(), 0.5F));
  const int rank = runtime.rank();
  const std::string who = bound.schedule + ", " + std::to_string(micro_batches) + " micro-batches, stage " +
                          std::to_string(rank) + ": ";
  Observer observing(gradient_readers(program.listing()));
  observer = &observing;
  runtime.barrier();

  // In the first step there are no gradients until every stage has gone forward as far as it may, and a while longer, in
  // which it may not go on.
  const Scalars scalars{{"learning_rate", 0.1}};
  program.run(scalars);
  const bool attained = !bound.attained || rank == stages - 1 || observing.wait_until_alive(bound.most);
  const int alive = observing.most();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  runtime.barrier();
  observing.gate(true);
  for (int step = 1; step < 5; ++step) program.run(scalars);  // as they come
  runtime.wait();
  runtime.barrier();

  if (!attained)
    throw std::logic_error(who + std::to_string(alive) + " are alive before there are gradients, " +
                           std::to_string(bound.most) + " were expected");
  if (!observing.nothing_alive()) throw std::logic_error(who + "gradients are missing");
  if (observing.most() > bound.most)
    throw std::logic_error(who + std::to_string(observing.most()) + " were alive at once, the schedule has " +
                           std::to_string(bound.most));
  std::vector<double> most(stages, 0);
  most[rank] = observing.most();
  runtime.sum_over_ranks(most.data(), stages);
  if (rank == 0) {
    std::printf("%s, %d micro-batches: alive", bound.schedule.c_str(), micro_batches);
    for (const double count : most) std::printf(" %g", count);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return tegula::run([&] {
    if (argc != 2) throw std::invalid_argument("usage: live_micro_batches WORKERS");
    Runtime runtime(argc, argv, {.cpu_workers = std::atoi(argv[1]), .print_table = false});
    if (runtime.size() != stages)
      throw std::invalid_argument("live_micro_batches needs " + std::to_string(stages) + " ranks");
    for (const int micro_batches : {2, 9})
      for (const Bound& bound : bounds(runtime.rank(), micro_batches)) measure(bound, micro_batches, runtime);
    return 0;
  });
}
