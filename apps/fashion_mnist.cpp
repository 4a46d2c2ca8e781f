// Trains an image classifier on Fashion-MNIST: a perceptron, or a small convolutional network.
//
//   build/apps/fashion_mnist --model cnn --epochs 8 --out runs/cnn
//   mpiexec -n 2 build/apps/fashion_mnist --tile batch=64

#include <algorithm>
#include <string>
#include <vector>

#include "apps/classification.hpp"

using namespace tegula;
using apps::Classifier;

namespace {

// Mean and standard deviation of the training images.
constexpr io::ImageDataset::Normalization normalization{0.2860f, 0.3530f};
const std::vector<std::string> classes{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                       "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

struct Settings : apps::TrainingOptions {
  std::string model = "mlp", data = "/usr/share/datasets/fashion-mnist", optimizer = "sgd";
  double momentum = 0.9, weight_decay = 0;

  void add_to(io::Options& options) {
    options.add("model", &model, "network to train")->check(CLI::IsMember({"mlp", "cnn"}));
    options.add("data", &data, "folder of the IDX files")->type_name("DIR");
    options.add("optimizer", &optimizer, "update rule")->check(CLI::IsMember({"sgd", "adamw"}));
    options.add("momentum", &momentum, "of sgd");
    options.add("weight-decay", &weight_decay, "of the optimizer");
    TrainingOptions::add_to(options);
  }
};

Classifier mlp(Graph& g, Axis batch, Axis label, const io::ImageDataset& data) {
  Axis pixel = g.axis("pixel", data.rows() * data.columns());
  Tensor image = g.input("image", f32, {batch, pixel});
  layers::Mlp model(g, pixel, {512, 512}, label);
  return {image, g.input("target", i32, {batch}), model(image), model.parameters()};
}

Classifier cnn(Graph& g, Axis batch, Axis label, const io::ImageDataset& data) {
  Axis channel = g.axis("channel", 1), height = g.axis("height", data.rows()),
       width = g.axis("width", data.columns());
  Tensor image = g.input("image", f32, {batch, channel, height, width});
  Tensor x = image;
  layers::Parameters parameters;
  auto add = [&](const auto& layer) {
    x = layer(x);
    for (const Tensor& parameter : layer.parameters()) parameters.push_back(parameter);
  };
  Axis map1 = g.axis("map1", 32), map2 = g.axis("map2", 64), hidden = g.axis("hidden", 128);
  add(layers::Conv2d(g, "conv1", channel, map1, 3, {.padding = 1}));
  x = max_pool2d(relu(x), 2, {.stride = 2});
  add(layers::Conv2d(g, "conv2", map1, map2, 3, {.padding = 1}));
  x = max_pool2d(relu(x), 2, {.stride = 2});
  add(layers::Linear(g, "linear1", {x.axes().begin() + 1, x.axes().end()}, hidden));
  x = relu(x);
  add(layers::Linear(g, "linear2", {hidden}, label));
  return {image, g.input("target", i32, {batch}), x, parameters};
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  io::Options options("fashion_mnist", "Trains an image classifier on Fashion-MNIST.", launched_rank() != 0);
  s.add_to(options);
  if (auto code = options.parse(argc, argv)) return *code;
  Runtime runtime(argc, argv, s.runtime());
  const bool first = runtime.rank() == 0;

  const std::string hint =
      "install Debian's package dataset-fashion-mnist, or give the folder of the files with --data";
  const auto train = io::ImageDataset::read(s.data, "train", std::ssize(classes), normalization, hint);
  const auto test = io::ImageDataset::read(s.data, "t10k", std::ssize(classes), normalization, hint);
  if (train.rows() != test.rows() || train.columns() != test.columns())
    throw std::runtime_error(s.data + ": training and test images differ in size");

  Graph g;
  g.seed(static_cast<std::uint64_t>(s.seed));
  Axis batch = g.axis("batch", std::min(s.batch, train.size())), label = g.axis("label", std::ssize(classes));
  const Classifier net = s.model == "mlp" ? mlp(g, batch, label, train) : cnn(g, batch, label, train);
  Tensor loss = layers::cross_entropy(net.logits, net.target);
  if (s.optimizer == "sgd")
    layers::sgd(g, loss, net.parameters, {.momentum = s.momentum, .weight_decay = s.weight_decay});
  else
    layers::adamw(g, loss, net.parameters, {.weight_decay = s.weight_decay});

  const Plan plan = s.plan(g, runtime, batch);
  const CompileOptions training{.outputs = {loss}}, testing{.outputs = {loss, net.logits}, .updates = false};
  apps::BatchPrograms train_step(compile(g, plan, runtime, training), batch, training);
  apps::BatchPrograms test_step(train_step.full().sibling(testing), batch, testing);

  if (s.estimated(train_step.full(), g, plan, training, static_cast<double>(batch.extent()), "images"))
    return 0;

  const std::int64_t steps = s.total_steps(train.size());
  io::RunFolder folder(s.out, s.model, options.toml(), first);
  io::Progress progress(steps, !first);
  progress.note(options.toml());
  apps::note_in_trace(runtime, g, plan, train_step.full(), folder, static_cast<double>(batch.extent()),
                      "images");
  if (s.print_plan) progress.note(plan.describe(g) + train_step.full().report());

  apps::LossQueue losses(runtime, loss, progress, folder);
  bool running = true;
  std::int64_t done = 0;
  apps::Evaluation result{.confusion = io::ConfusionMatrix(classes)};
  for (std::int64_t epoch = 1; epoch == 1 || (running && done < steps); ++epoch) {
    const io::Stopwatch watch;
    progress.resume();
    std::int64_t images = 0;
    for (const io::ImageBatch& data : train.shuffled_batches(batch.extent(), g.seed(), epoch)) {
      if (!running || done == steps) break;
      images += data.size();
      const double rate = s.learning_rate(done++, steps);
      Result step =
          apps::run(train_step.of(data.size()), net, data, {{"learning_rate", rate}, {"step", done}});
      running = losses.push({done, epoch, data.size()}, step);
    }
    const double mean_loss = losses.drain();
    if (Runtime::simulated()) return 0;  // there is nothing to judge nor to save
    const double images_per_s = images / watch.seconds();
    result = apps::evaluate(runtime, test_step, net, loss, test, classes);
    progress.note(fmt::format("epoch {}: test loss {:.4f}, test accuracy {:.4f}, {:.0f} images/s", epoch,
                              result.loss, result.confusion.accuracy(), images_per_s));
    if (images > 0)
      folder.record({{"step", done},
                     {"epoch", epoch},
                     {"loss", mean_loss},
                     {"loss_hex", io::hex_float(mean_loss)},
                     {"images_per_s", images_per_s},
                     {"test_loss", result.loss},
                     {"test_accuracy", result.confusion.accuracy()}});
  }

  nlohmann::ordered_json summary{{"model", s.model},
                                 {"steps", done},
                                 {"test_loss", result.loss},
                                 {"test_accuracy", result.confusion.accuracy()}};
  summary.update(result.confusion.json());
  folder.write("result.json", summary);
  apps::save_states(folder.path() / "model.safetensors", runtime, train_step.full(), net.parameters);
  progress.note(result.confusion.table());
  progress.note(fmt::format("test accuracy {:.4f}, results in {}", result.confusion.accuracy(),
                            folder.path().string()));
  return apps::exit_code(runtime, /*finished=*/running);
}
