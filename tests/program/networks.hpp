// Small networks with made-up data, for the tests of programs.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "framework/program/program.hpp"
#include "layers/layers.hpp"

namespace tegula::test {

// Uniform in [-1, 1), the same on every rank and standard library.
inline std::vector<float> made_up(std::int64_t elements, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(elements);
  for (float& x : values) x = static_cast<float>(random() >> 8) * 0x1p-23F - 1;
  return values;
}

inline std::vector<std::int32_t> made_up_labels(std::int64_t elements, std::int64_t labels) {
  std::vector<std::int32_t> values(elements);
  for (std::int64_t i = 0; i < elements; ++i) values[i] = static_cast<std::int32_t>(i * i % labels);
  return values;
}

// A network that tells labels from images, with its loss and, once an optimizer is added, its training step.
struct Network {
  Graph graph;
  Axis batch, label = graph.axis("label", 5);
  Tensor image, target, logits, loss;
  layers::Parameters parameters;

  explicit Network(std::int64_t images) : batch(graph.axis("batch", images)) {
    target = graph.input("target", i32, {batch});
  }
  void end(const Tensor& result) {
    logits = result;
    loss = layers::cross_entropy(logits, target);
  }
  Axis axis(std::string_view name) { return graph.find_axis(name).value(); }
  void bind(Program& program, std::int64_t images, std::uint32_t seed) const {
    program.bind(image, made_up(images * (image.elements() / batch.extent()), seed))
        .bind(target, made_up_labels(images, label.extent()));
  }
};

struct Mlp : Network {
  explicit Mlp(std::int64_t images) : Network(images) {
    Axis pixel = graph.axis("pixel", 12);
    image = graph.input("image", f32, {batch, pixel});
    const layers::Mlp model(graph, pixel, {10, 7}, label);
    parameters = model.parameters();
    end(model(image));
  }
};

struct Cnn : Network {
  explicit Cnn(std::int64_t images) : Network(images) {
    Axis color = graph.axis("color", 2), map1 = graph.axis("map1", 3), map2 = graph.axis("map2", 4);
    image = graph.input("image", f32, {batch, color, graph.axis("height", 8), graph.axis("width", 8)});
    const layers::Conv2d first(graph, "conv1", color, map1, 3, {.padding = 1});
    const layers::Conv2d second(graph, "conv2", map1, map2, 3, {.padding = 1});
    Tensor y = max_pool2d(relu(first(image)), 2, {.stride = 2});
    y = avg_pool2d(relu(second(y)), 2, {.stride = 2});
    const layers::Linear last(graph, "linear", {y.axes()[1], y.axes()[2], y.axes()[3]}, label);
    for (const auto& some : {first.parameters(), second.parameters(), last.parameters()})
      parameters.insert(parameters.end(), some.begin(), some.end());
    end(last(y));
  }
};

}  // namespace tegula::test
