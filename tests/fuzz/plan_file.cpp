// libFuzzer target: any text is either a plan or a std::runtime_error that names the file, and a plan for a few ranks is either
// refused by std::invalid_argument or gives them listings that fit together. See scripts/fuzz.
#include "framework/io/plan_file.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "framework/program/listing.hpp"
#include "kernels/reduce.hpp"

namespace tegula {

// Sums of partial results are to be placed, not to be computed.
template <class T>
void Reduce::cpu(In<T>, Acc<T>) const {}

namespace {

const Register<Reduce> registered_reduce;

// y (rows, cols) = x (rows, inner) w (cols, inner)^T: to be placed, not to be run.
struct Product {
  static constexpr std::string_view name = "product";
  std::int64_t rows, cols, inner;
  bool accumulate;

  std::array<std::int64_t, 3> extents(DType) const { return {rows * inner, cols * inner, rows * cols}; }
  bool accumulates() const { return accumulate; }
  double flops() const { return 2.0 * static_cast<double>(rows * cols * inner); }
  static std::vector<Product> samples() { return {}; }
  void reference(In<double>, In<double>, Acc<double>) const {}
  template <class T>
  void cpu(In<T>, In<T>, Acc<T>) const {}
};
const Register<Product> registered_product;

const Semantics semantics{
    .name = "product", .task = [](const Node& node, const TileRange& range) {
      const Axes &x = node.inputs[0].axes(), &w = node.inputs[1].axes();
      return TaskSpec::of(Product{range.extent(x[0]), range.extent(w[0]), range.extent(x[1]), !range.first()},
                          f32);
    }};

// Three layers, with the axes and scopes that the seeds name.
struct Network {
  Graph graph;
  Tensor result;

  Network() {
    const Axis batch = graph.axis("batch", 12);
    Axis in = graph.axis("pixel", 6);
    result = graph.input("image", f32, {batch, in});
    int number = 0;
    for (const char* layer : {"linear1", "linear2", "loss"}) {
      const Axis out = graph.axis("hidden" + std::to_string(++number), 8);
      const Graph::Scope scope(graph, layer);
      const Tensor w = graph.state(std::string(layer) + ".weight", f32, {out, in});
      result = graph.emit(semantics, {}, {result, w}, {{f32, {batch, out}}})[0];
      in = out;
    }
  }
};

void lower_all(Network& network, const Plan& plan, int ranks) {
  const CompileOptions options{.outputs = {network.result}};
  std::int64_t sent = 0, received = 0, tasks = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Listing listing = lower(network.graph, plan, rank, ranks, options);
    sent += listing.sent_bytes;
    received += listing.received_bytes;
    tasks += listing.tasks;
  }
  if (sent != received || tasks != lower(network.graph, plan.on_one_rank(), 0, 1, options).tasks)
    std::abort();
}

}  // namespace
}  // namespace tegula

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tegula::Network network;
  try {
    const tegula::Plan plan =
        tegula::io::parse_plan({reinterpret_cast<const char*>(data), size}, "input", network.graph);
    if (plan.describe(network.graph).empty()) std::abort();
    std::int64_t ranks = 1;
    for (const auto& [name, places] : plan.mesh()) ranks *= places;
    if (ranks > 8) return 0;
    try {
      tegula::lower_all(network, plan, static_cast<int>(ranks));
    } catch (const std::invalid_argument& error) {
      if (!std::string_view(error.what()).starts_with("[")) std::abort();
    }
  } catch (const std::runtime_error& error) {
    if (!std::string_view(error.what()).starts_with("input:")) std::abort();
  }
  return 0;
}
