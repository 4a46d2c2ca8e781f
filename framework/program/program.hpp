// Program: a graph under a plan, compiled for this rank and ready to run any number of times.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/program/listing.hpp"
#include "framework/runtime/runtime.hpp"

namespace tegula {

// Run-time scalars by name, such as {{"learning_rate", 1e-3}}.
using Scalars = std::vector<std::pair<std::string_view, double>>;

// Writes one tile of an input, row-major; called on a worker when the tile's turn comes.
using Filler = std::function<void(const TileRegion& region, void* data)>;

// The outputs of one run, on rank 0. Copies share them.
class Result {
 public:
  bool ready() const;  // whether reading would not wait
  // The value of a scalar output; waits for it. Throws what a kernel threw, std::logic_error on other ranks.
  double value(const Tensor& output) const;
  // A whole output, row-major, converted to double.
  std::vector<double> values(const Tensor& output) const;

 private:
  friend class Program;
  struct State;
  std::shared_ptr<State> state_;
};

// Movable. All methods are collective unless said otherwise: every rank calls them in the same order.
class Program {
 public:
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;
  ~Program();

  // What fills the input's tiles in later runs; every rank binds the same contents. Local.
  Program& bind(const Tensor& input, Filler filler);
  // The same from row-major host values of the whole input, which the program keeps alive as long as it needs them.
  template <class T>
  Program& bind(const Tensor& input, std::vector<T> values);

  // Submits one step and returns at once, or when fewer than two earlier steps are unfinished. Unless given, "step" is the
  // number, from 1, of the run among those of this program and its siblings that update state. Throws std::invalid_argument
  // for an input that is not bound or a scalar that is missing, with nothing submitted.
  Result run(const Scalars& scalars = {});

  // Another program on the same state: evaluation, or a last batch of another size.
  Program sibling(const CompileOptions& options) const;

  // The state of this program and its siblings under another plan with the same tiles and groups, in the running job: tiles
  // whose owner changes travel, once, the others stay, and the bits go on as they would have. Waits for submitted runs.
  // The programs on the old plan are of no more use: their methods throw std::logic_error.
  Program move_to(const Plan& plan, const CompileOptions& options);

  // The contents of a state as double, row-major, on rank 0 (empty on others); waits for submitted runs.
  std::vector<double> read(const Tensor& state) const;
  // Overwrites a state with row-major values, which every rank gives.
  void write(const Tensor& state, std::span<const double> values);

  // Shows this rank's tiles of a state to `look`, on a worker each, as they are between the runs submitted so far and the
  // later ones. Returns at once, with the number of tiles; where a kernel fails first, `look` is destroyed without having
  // seen them all.
  std::int64_t visit(const Tensor& state,
                     const std::function<void(const TileRegion& region, const void* data)>& look) const;
  // Overwrites this rank's tiles of a state in the same manner. No messages.
  void fill(const Tensor& state, const Filler& filler);

  // Runs so far that updated state, of this program and its siblings: the next one's "step" is one more, so that an optimizer
  // and random numbers continue where a resumed run sets it.
  std::int64_t updates() const;
  void updates(std::int64_t count);

  Runtime& runtime() const;
  const Listing& listing() const;
  // Memory of tiles on this rank: of state, of what is computed from it, and what its workers need beside. It is allocated in the
  // first run and stays for the later ones.
  std::int64_t peak_bytes() const;
  // Tasks, flops, bytes sent and received and peak memory of every rank, as predicted, per run.
  std::string report() const;

 private:
  friend Program compile(Graph& graph, const Plan& plan, Runtime& runtime, const CompileOptions& options);
  struct State;
  explicit Program(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Compiles the graph for this rank and initialises its state. Graph and runtime must outlive the program.
Program compile(Graph& graph, const Plan& plan, Runtime& runtime, const CompileOptions& options = {});

}  // namespace tegula
