// GPT-2 and Llama: the same logits however they are cut and whether a token comes alone or with its sequence.
#include "layers/transformer.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "framework/program/program.hpp"
#include "layers/schedule.hpp"
#include "tests/graph/derivatives.hpp"
#include "tests/graph/runtime.hpp"

using namespace tegula;
using layers::TransformerOptions;
using test::check_close;
using test::runtime;

namespace {

TransformerOptions small(TransformerOptions::Kind kind) {
  return {.kind = kind,
          .layers = 2,
          .heads = 4,
          .key_value_heads = kind == TransformerOptions::Kind::llama ? 2 : 4,
          .head_dim = 6,
          .hidden = 20,
          .tied = kind == TransformerOptions::Kind::gpt2};
}

constexpr std::int64_t length = 7, words = 11;
const std::vector<std::int32_t> text{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};  // two sequences

struct Model {
  Graph g;
  Axis batch = g.axis("batch", 2), sequence = g.axis("sequence", length),
       vocabulary = g.axis("vocabulary", words);
  Tensor tokens = g.input("tokens", i32, {batch, sequence}),
         target = g.input("target", i32, {batch, sequence});
  layers::Transformer transformer;

  explicit Model(const TransformerOptions& options) : transformer(g, options, sequence, vocabulary) {}
};

}  // namespace

TEST_CASE("a transformer's loss and gradients do not depend on how it is cut") {
  for (auto kind : {TransformerOptions::Kind::gpt2, TransformerOptions::Kind::llama}) {
    Model m(small(kind));
    Tensor loss = layers::cross_entropy(m.transformer(m.tokens), m.target);
    std::vector<Tensor> outputs = gradients(loss, m.transformer.parameters());
    outputs.push_back(loss);
    auto run = [&](const Plan& plan) {
      Program program = compile(m.g, plan, runtime(), {.outputs = outputs});
      return program.bind(m.tokens, text)
          .bind(m.target, std::vector<std::int32_t>(text.rbegin(), text.rend()))
          .run();
    };
    Plan cut;
    for (const auto& [name, size] : {std::pair("batch", 1),
                                     {"sequence", 3},
                                     {"vocabulary", 4},
                                     {"embed", 5},
                                     {"head", 1},
                                     {"hidden", 8}})
      cut.tile(*m.g.find_axis(name), size);
    const Result whole = run(Plan()), tiled = run(cut), by_sequence = run(Plan().tile(m.sequence, 2));
    CHECK(whole.value(loss) == doctest::Approx(std::log(words)).epsilon(0.05));
    for (const Tensor& output : outputs) {
      check_close(output.describe(), tiled.values(output), whole.values(output), 1e-5);
      check_close(output.describe(), by_sequence.values(output), whole.values(output), 1e-5);
    }
  }
}

TEST_CASE("tokens that come one by one get the logits that they get together") {
  for (auto kind : {TransformerOptions::Kind::gpt2, TransformerOptions::Kind::llama}) {
    Model m(small(kind));
    Axis one = m.g.axis("one", 1);
    Tensor token = m.g.input("token", i32, {m.batch, one}), place = m.g.input("place", i32, {m.batch, one});
    Tensor together = m.transformer(m.tokens), alone = m.transformer.decode(token, place);
    for (const Plan& plan : {Plan(), Plan().tile(m.sequence, 3).tile(m.batch, 1)}) {
      Program all = compile(m.g, plan, runtime(), {.outputs = {together}, .updates = false});
      const std::vector<double> expected = all.bind(m.tokens, text).run().values(together);
      Program step = all.sibling({.outputs = {alone}});
      for (std::int32_t i = 0; i < length; ++i) {
        step.bind(token, std::vector<std::int32_t>{text[i], text[length + i]});
        step.bind(place, std::vector<std::int32_t>{i, i});
        const std::vector<double> logits = step.run({{"position", i}}).values(alone);
        for (std::int64_t b = 0; b < 2; ++b) {
          auto first = expected.begin() + (b * length + i) * words;
          check_close("token " + std::to_string(i),
                      {logits.begin() + b * words, logits.begin() + (b + 1) * words}, {first, first + words},
                      1e-5);
        }
      }
    }
  }
}

TEST_CASE("parameters have Hugging Face's names and fill their tensors") {
  for (auto kind : {TransformerOptions::Kind::gpt2, TransformerOptions::Kind::llama}) {
    Model m(small(kind));
    std::map<std::string, std::int64_t> filled, sizes;
    for (const layers::ParameterPlace& place : m.transformer.places()) {
      filled[place.name] += place.state.elements();
      sizes[place.name] = 1;
      for (std::int64_t extent : place.shape) sizes[place.name] *= extent;
    }
    CHECK(filled == sizes);
    CHECK(sizes.contains(kind == TransformerOptions::Kind::gpt2 ? "transformer.h.1.attn.c_attn.weight"
                                                                : "model.layers.1.self_attn.k_proj.weight"));
    CHECK(sizes.contains("lm_head.weight") == (kind == TransformerOptions::Kind::llama));
  }
}

TEST_CASE("transformers that cannot be are refused") {
  auto make = [](TransformerOptions options) { Model m(options); };
  TransformerOptions grouped = small(TransformerOptions::Kind::gpt2),
                     uneven = small(TransformerOptions::Kind::llama), odd = uneven, none = uneven;
  grouped.key_value_heads = 2;
  uneven.key_value_heads = 3;
  odd.head_dim = 5;
  none.layers = 0;
  CHECK_THROWS_WITH_AS(make(grouped), doctest::Contains("GPT-2 has no grouped queries"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(make(uneven), doctest::Contains("4 query heads cannot share 3"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(make(odd), doctest::Contains("even head_dim, got 5"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(make(none), doctest::Contains("layers = 0"), std::invalid_argument);
}

TEST_CASE("gradients are clipped to a norm of all together") {
  Graph g;
  Axis i = g.axis("i", 3), j = g.axis("j", 2);
  Tensor a = g.state("a", f64, {i}, Initializer::fill(2)),
         b = g.state("b", f64, {i, j}, Initializer::fill(-1));
  Tensor norm = layers::global_norm({a, b}), little = layers::clip_factor(norm, 1),
         enough = layers::clip_factor(norm, 10);
  Program program = compile(g, Plan().tile(i, 2), runtime(), {.outputs = {norm, little, enough}});
  const Result result = program.run();
  CHECK(result.value(norm) == doctest::Approx(std::sqrt(18.0)));
  CHECK(result.value(little) == doctest::Approx(1 / (std::sqrt(18.0) + 1e-6)));
  CHECK(result.value(enough) == 1);
}

TEST_CASE("learning rates follow their schedules") {
  using layers::Decay, layers::Schedule;
  const Schedule cosine{Decay::cosine, 1, 0.1, 110, 10}, linear{Decay::linear, 1, 0, 100, 0},
      stable{Decay::stable, 1, 0, 100, 10, 20}, constant{Decay::constant, 0.5, 0, 100, 0};
  CHECK(cosine.rate(0) == doctest::Approx(0.1));
  CHECK(cosine.rate(9) == 1);
  CHECK(cosine.rate(10) == 1);
  CHECK(cosine.rate(60) == doctest::Approx(0.55));
  CHECK(cosine.rate(110) == doctest::Approx(0.1));
  CHECK(cosine.rate(500) == doctest::Approx(0.1));
  CHECK(linear.rate(25) == doctest::Approx(0.75));
  CHECK(stable.rate(79) == 1);
  CHECK(stable.rate(90) == doctest::Approx(0.5));
  CHECK(constant.rate(99) == 0.5);
  CHECK(layers::find_decay("stable") == Decay::stable);
  CHECK_THROWS_AS(layers::find_decay("exponential"), std::invalid_argument);
}
