// A trained model as gpt evaluate and gpt generate are given it.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include "apps/gpt/model.hpp"
#include "apps/training.hpp"

namespace tegula::apps {

// A trained model: the folder of a run, or of one of its checkpoints.
struct TrainedOptions : PlacementOptions {
  std::string run;
  void add_to(io::Options& options) {
    options.add("run", &run, "folder of a training run, or one of its checkpoints")
        ->required()
        ->type_name("DIR");
    PlacementOptions::add_to(options);
  }
};

struct Trained {
  std::filesystem::path checkpoint, tokenizer;
  ModelOptions model;
  std::int64_t vocabulary;
  std::uint64_t seed;

  explicit Trained(const std::string& run)
      : checkpoint(find_checkpoint(run)),
        // The run's folder, whatever way the path takes there.
        tokenizer(std::filesystem::canonical(checkpoint).parent_path().parent_path()) {
    const std::filesystem::path file = checkpoint / "state.json";
    const auto contents = io::parse_state(io::read_text(file), file.string()).contents;
    try {
      model = ModelOptions::from(contents.at("model"));
      contents.at("vocabulary").get_to(vocabulary);
      contents.at("seed").get_to(seed);
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(file.string() + ": is not of a gpt training: " + error.what());
    }
  }
};

}  // namespace tegula::apps
