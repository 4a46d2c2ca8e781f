// Walking through TOML tables whose mistakes are told with file and line: what plan files and cluster files share.
#pragma once

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tegula::io {

class TomlFile {
 public:
  // Throws std::runtime_error, starting with "name:line:", for what is not TOML.
  TomlFile(const std::string& text, std::string name) : name_(std::move(name)) {
    try {
      all_ = toml::parse(text);
    } catch (const toml::parse_error& error) {
      throw std::runtime_error(
          fmt::format("{}:{}: not valid TOML: {}", name_, error.source().begin.line, error.description()));
    }
  }
  const toml::table& all() const { return all_; }

  // What f throws, with the line of the node before it.
  template <class F>
  void at(const toml::node& node, F f) const {
    try {
      f();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw std::runtime_error(text.starts_with(name_ + ":")
                                   ? text
                                   : fmt::format("{}:{}: {}", name_, node.source().begin.line, text));
    }
  }

  // f(key, value) for each entry of a table, in the order of the file.
  template <class F>
  void each(const toml::node& node, F f) const {
    at(node, [&] {
      if (!node.is_table()) throw std::runtime_error("expects a table");
    });
    std::vector<std::pair<std::string, const toml::node*>> entries;
    for (const auto& [key, value] : *node.as_table()) entries.emplace_back(key.str(), &value);
    std::ranges::sort(entries, [](const auto& a, const auto& b) {
      return a.second->source().begin < b.second->source().begin;
    });
    for (const auto& entry : entries) at(*entry.second, [&] { f(entry.first, *entry.second); });
  }

  template <class T>
  static T value(const toml::node& node, const char* kind) {
    if (const auto found = node.value_exact<T>()) return *found;
    throw std::runtime_error(fmt::format("expects {}", kind));
  }
  static std::int64_t integer(const toml::node& node) {
    const auto number = value<std::int64_t>(node, "an integer");
    if (number < INT_MIN || number > INT_MAX)
      throw std::runtime_error(fmt::format("{} is out of range", number));
    return number;
  }
  static std::vector<int> integers(const toml::node& node) {
    if (!node.is_array()) throw std::runtime_error("expects a list of integers");
    std::vector<int> all;
    for (const toml::node& number : *node.as_array()) all.push_back(static_cast<int>(integer(number)));
    return all;
  }
  // One or a list.
  static std::vector<std::string> strings(const toml::node& node, const char* what) {
    const std::string kind = fmt::format("the names of {}: a string or a list of them", what);
    if (!node.is_array()) return {value<std::string>(node, kind.c_str())};
    std::vector<std::string> all;
    for (const toml::node& name : *node.as_array()) all.push_back(value<std::string>(name, kind.c_str()));
    return all;
  }

 private:
  std::string name_;
  toml::table all_;
};

}  // namespace tegula::io
