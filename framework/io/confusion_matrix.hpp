// How often each class was taken for which: what a classifier gets right and wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace tegula::io {

class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::vector<std::string> classes);

  void add(std::int64_t label, std::int64_t predicted) { ++counts_[label * size() + predicted]; }
  // The same for the class with the largest of `scores`, one per class; the first of equals.
  void add(std::int64_t label, std::span<const double> scores);

  std::int64_t size() const { return static_cast<std::int64_t>(classes_.size()); }
  double accuracy() const;                       // share of all that were right, 0 without any
  double accuracy_of(std::int64_t label) const;  // share of those with this label
  std::string table() const;                     // for a reader: a row per label, a column per prediction
  nlohmann::ordered_json json() const;           // {classes, confusion, accuracy_per_class}

 private:
  std::int64_t count(std::int64_t label, std::int64_t predicted) const {
    return counts_[label * size() + predicted];
  }
  std::int64_t total_of(std::int64_t label) const;

  std::vector<std::string> classes_;
  std::vector<std::int64_t> counts_;  // row-major (label, predicted)
};

}  // namespace tegula::io
