// A network that tells images apart: how to run it on a batch and how to judge it.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/training.hpp"
#include "framework/io/confusion_matrix.hpp"

namespace tegula::apps {

struct Classifier {
  Tensor image, target, logits;  // image and target are inputs
  layers::Parameters parameters;
};

// Submits one run on a batch of images.
inline Result run(Program& program, const Classifier& net, const io::ImageBatch& batch,
                  const Scalars& scalars = {}) {
  program.bind(net.image, [batch](const TileRegion& region, void* data) { batch.fill_images(region, data); });
  program.bind(net.target,
               [batch](const TileRegion& region, void* data) { batch.fill_labels(region, data); });
  return program.run(scalars);
}

struct Evaluation {
  double loss = 0;
  io::ConfusionMatrix confusion;
};

// Collective: mean loss and confusion matrix over a data set; filled on rank 0. `programs` have the outputs `loss` and
// logits and update nothing.
inline Evaluation evaluate(const Runtime& runtime, BatchPrograms& programs, const Classifier& net,
                           const Tensor& loss, const io::ImageDataset& data,
                           const std::vector<std::string>& classes) {
  std::vector<std::pair<io::ImageBatch, Result>> runs;
  for (const io::ImageBatch& batch : data.batches(programs.full_size()))
    runs.emplace_back(batch, run(programs.of(batch.size()), net, batch));
  Evaluation total{.confusion = io::ConfusionMatrix(classes)};
  if (runtime.rank() != 0) return total;
  for (const auto& [batch, result] : runs) {
    total.loss += result.value(loss) * static_cast<double>(batch.size()) / static_cast<double>(data.size());
    const std::vector<double> logits = result.values(net.logits);
    for (std::int64_t i = 0; i < batch.size(); ++i)
      total.confusion.add(batch.label(i), std::span(logits).subspan(i * classes.size(), classes.size()));
  }
  return total;
}

}  // namespace tegula::apps
