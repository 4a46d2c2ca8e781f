// Optimizer steps: nodes without outputs that update state in place.
#include "kernels/optimizer.hpp"

#include <stdexcept>

#include "framework/graph/ops.hpp"

namespace tegula {

namespace {

void check_update(const char* op, const Tensor& w, const Tensor& gradient,
                  std::initializer_list<Tensor> moments) {
  if (w.info().kind != TensorInfo::Kind::state)
    throw std::invalid_argument("[" + std::string(op) + "] updates states, but " + w.describe() +
                                " is not one");
  if (gradient.dtype() != w.dtype() || gradient.axes() != w.axes())
    throw std::invalid_argument("[" + std::string(op) + "] the gradient is " + gradient.describe() +
                                " but the parameter " + w.describe());
  for (const Tensor& m : moments)
    if (m && (m.dtype() != w.dtype() || m.axes() != w.axes() || m.info().kind != TensorInfo::Kind::state))
      throw std::invalid_argument("[" + std::string(op) + "] the moment " + m.describe() +
                                  " is no state like " + w.describe());
}

const Semantics sgd_semantics{.name = "sgd", .task = [](const Node& node, const TileRange& range) {
                                const Tensor& w = node.inputs[0];
                                auto options = node.as<SgdOptions>();
                                Sgd op{.n = range.elements(w.axes()),
                                       .momentum = node.inputs[1] ? options.momentum : 0};
                                op.weight_decay = options.weight_decay;
                                op.nesterov = options.nesterov;
                                return TaskSpec::of(op, w.dtype());
                              }};

const Semantics adam_semantics{.name = "adam", .task = [](const Node& node, const TileRange& range) {
                                 const Tensor& w = node.inputs[0];
                                 auto options = node.as<AdamOptions>();
                                 Adam op{.n = range.elements(w.axes()),
                                         .beta1 = options.beta1,
                                         .beta2 = options.beta2,
                                         .epsilon = options.epsilon};
                                 op.weight_decay = options.weight_decay;
                                 op.decoupled = options.decoupled;
                                 op.has_scale = bool(node.inputs[4]);
                                 return TaskSpec::of(op, w.dtype());
                               }};

const Semantics loss_scale_semantics{
    .name = "loss_scale", .task = [](const Node& node, const TileRange& range) {
      const auto options = node.as<LossScaleOptions>();
      return TaskSpec::of(
          LossScale{range.elements(node.inputs[0].axes()), options.growth, options.backoff, options.interval},
          node.inputs[0].dtype());
    }};

}  // namespace

void sgd(const Tensor& w, const Tensor& momentum, const Tensor& gradient, const SgdOptions& options) {
  check_update("sgd", w, gradient, {momentum});
  if ((options.momentum != 0) != bool(momentum))
    throw std::invalid_argument("[sgd] a momentum other than 0 and a state to keep it come together");
  w.graph().emit(sgd_semantics, options, {w, momentum, gradient}, {});
}

void adam(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& gradient,
          const AdamOptions& options, const Tensor& scale) {
  check_update("adam", w, gradient, {m, v});
  if (scale && (scale.dtype() != w.dtype() || !scale.axes().empty()))
    throw std::invalid_argument("[adam] the scale of the gradient must be a scalar " +
                                std::string(name_of(w.dtype())) + ", got " + scale.describe());
  w.graph().emit(adam_semantics, options, {w, m, v, gradient, scale}, {});
}

void update_loss_scale(const Tensor& scale, const Tensor& good, const Tensor& norm,
                       const LossScaleOptions& options) {
  check_update("loss_scale", scale, norm, {good});
  if (options.growth < 1 || options.backoff <= 0 || options.backoff > 1 || options.interval < 1)
    throw std::invalid_argument(
        "[loss_scale] growth must be at least 1, backoff in (0, 1], interval at least 1");
  scale.graph().emit(loss_scale_semantics, options, {scale, good, norm}, {});
}

}  // namespace tegula
