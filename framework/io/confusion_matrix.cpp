#include "framework/io/confusion_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace tegula::io {

namespace {
double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}
}  // namespace

ConfusionMatrix::ConfusionMatrix(std::vector<std::string> classes)
    : classes_(std::move(classes)), counts_(classes_.size() * classes_.size()) {}

void ConfusionMatrix::add(std::int64_t label, std::span<const double> scores) {
  add(label, std::ranges::max_element(scores) - scores.begin());
}

std::int64_t ConfusionMatrix::total_of(std::int64_t label) const {
  const auto row = counts_.begin() + label * size();
  return std::accumulate(row, row + size(), std::int64_t{0});
}

double ConfusionMatrix::accuracy() const {
  std::int64_t right = 0;
  for (std::int64_t label = 0; label < size(); ++label) right += count(label, label);
  return share(right, std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}));
}

double ConfusionMatrix::accuracy_of(std::int64_t label) const {
  return share(count(label, label), total_of(label));
}

std::string ConfusionMatrix::table() const {
  std::string text = fmt::format("{:14}", "");
  for (const std::string& name : classes_) text += fmt::format("{:>8.7}", name);
  text += fmt::format("{:>11}\n", "accuracy");
  for (std::int64_t label = 0; label < size(); ++label) {
    text += fmt::format("{:14.13}", classes_[label]);
    for (std::int64_t predicted = 0; predicted < size(); ++predicted)
      text += fmt::format("{:8}", count(label, predicted));
    text += fmt::format("{:11.4f}\n", accuracy_of(label));
  }
  return text;
}

nlohmann::ordered_json ConfusionMatrix::json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array(),
                         accuracies = nlohmann::ordered_json::object();
  for (std::int64_t label = 0; label < size(); ++label) {
    const auto row = counts_.begin() + label * size();
    rows.push_back(std::vector<std::int64_t>(row, row + size()));
    accuracies[classes_[label]] = accuracy_of(label);
  }
  return {{"classes", classes_}, {"confusion", rows}, {"accuracy_per_class", accuracies}};
}

}  // namespace tegula::io
