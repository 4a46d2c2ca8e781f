#include "framework/io/options.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "framework/io/file.hpp"

namespace tegula::io {

namespace {

// The pair that AXIS=N spells, or nothing.
std::optional<NamedNumbers::value_type> parse_pair(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) return {};
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + equals + 1, end, number);
  if (error != std::errc() || rest != end || number < 1) return {};
  return {{std::string(text.substr(0, equals)), number}};
}

void set(NamedNumbers& numbers, const NamedNumbers::value_type& pair) {
  auto found = std::ranges::find(numbers, pair.first, &NamedNumbers::value_type::first);
  if (found == numbers.end())
    numbers.push_back(pair);
  else
    found->second = pair.second;
}

CLI::Option* add_named_numbers(CLI::App& app, const std::string& flag, NamedNumbers& numbers,
                               const std::string& help) {
  auto take = [&numbers](const std::vector<std::string>& texts) {
    numbers.clear();
    for (const std::string& text : texts) set(numbers, parse_pair(text).value());
  };
  auto check = [](const std::string& text) {
    return parse_pair(text) ? std::string() : "'" + text + "' is not NAME=N with N >= 1, as in batch=64";
  };
  return app.add_option_function<std::vector<std::string>>(flag, take, help + " (repeatable)")
      ->type_name("NAME=N")
      ->allow_extra_args(false)
      ->check(check);
}

// Letters to insert, delete or replace to make `b` of `a` (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

template <class Number>
std::string toml_text(const Number& number) {
  if constexpr (std::is_floating_point_v<Number>)
    if (number == 0 && std::signbit(number))
      return "-0.0";                 // "-0" would be an integer, which has no such zero
  return fmt::format("{}", number);  // the shortest digits that read back the same
}

std::string toml_text(const std::string& text) {
  std::ostringstream out;
  const toml::value node{text};
  out << toml::toml_formatter{node, toml::format_flags::none};
  return out.str();
}

std::string toml_key(const std::string& key) {
  const bool bare = !key.empty() && key.find_first_not_of(
                                        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                        "0123456789_-") == std::string::npos;
  return bare ? key : toml_text(key);
}

std::string toml_text(const NamedNumbers& numbers) {
  std::string text;
  for (const auto& [name, number] : numbers)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", toml_key(name), number);
  return text.empty() ? "{}" : "{ " + text + " }";
}

// What the command line would say for a TOML value of the type that `variable` has.
struct ToArguments {
  const toml::node& node;

  std::vector<std::string> operator()(const std::int64_t*) const {
    if (!node.is_integer()) throw std::runtime_error("expects an integer");
    return {toml_text(node.as_integer()->get())};
  }
  std::vector<std::string> operator()(const double*) const {
    if (!node.is_number()) throw std::runtime_error("expects a number");
    return {toml_text(*node.value<double>())};
  }
  std::vector<std::string> operator()(const std::string*) const {
    if (!node.is_string()) throw std::runtime_error("expects a string");
    return {node.as_string()->get()};
  }
  std::vector<std::string> operator()(const bool*) const {
    if (!node.is_boolean()) throw std::runtime_error("expects true or false");
    return {node.as_boolean()->get() ? "true" : "false"};
  }
  std::vector<std::string> operator()(const NamedNumbers*) const {
    if (!node.is_table()) throw std::runtime_error("expects a table of NAME = N");
    struct Item {
      toml::source_position position;
      std::string argument;
    };
    std::vector<Item> items;  // toml++ sorts by key; meshes want the order of the file
    for (const auto& [key, value] : *node.as_table()) {
      if (!value.is_integer())
        throw std::runtime_error(fmt::format("expects an integer for '{}'", key.str()));
      items.push_back({value.source().begin, fmt::format("{}={}", key.str(), value.as_integer()->get())});
    }
    std::ranges::sort(items, [](const Item& a, const Item& b) { return a.position < b.position; });
    std::vector<std::string> arguments;
    for (Item& item : items) arguments.push_back(std::move(item.argument));
    return arguments;
  }
};

}  // namespace

CLI::Validator at_least(std::int64_t minimum) {
  return {[minimum](std::string& text) {
            double number = 0;
            return CLI::detail::lexical_cast(text, number) && number >= static_cast<double>(minimum)
                       ? std::string()
                       : fmt::format("must be a number >= {}, not '{}'", minimum, text);
          },
          fmt::format(">= {}", minimum)};
}

Options::Options(const std::string& program, const std::string& description, bool quiet)
    : app_(description, program), quiet_(quiet) {
  app_.add_option("--config", config_file_, "TOML file whose keys are the names of these options")
      ->type_name("FILE");
}

CLI::Option* Options::add(const std::string& name, Variable variable, const std::string& help) {
  const std::string flag = "--" + name;
  CLI::Option* option = std::visit(
      [&]<class T>(T* target) {
        if constexpr (std::is_same_v<T, NamedNumbers>)
          return add_named_numbers(app_, flag, *target, help);
        else if constexpr (std::is_same_v<T, bool>)
          return app_.add_flag(flag, *target, help);
        else
          return app_.add_option(flag, *target, help)->capture_default_str();
      },
      variable);
  entries_.push_back({name, variable, option});
  return option;
}

std::optional<int> Options::parse(int argc, const char* const* argv) {
  std::string error;
  try {
    app_.parse(argc, argv);
    if (!config_file_.empty()) apply_toml(read_text(config_file_), config_file_);
    return {};
  } catch (const CLI::CallForHelp&) {
    if (!quiet_) std::cout << app_.help();
    return 0;
  } catch (const CLI::ExtrasError&) {
    const std::string extra = app_.remaining().front();
    const std::string name = extra.substr(0, extra.find('='));
    error = name.starts_with("--")
                ? fmt::format("unknown option {}; did you mean --{}?", name, did_you_mean(name.substr(2)))
                : fmt::format("unexpected argument '{}'", extra);
  } catch (const std::exception& e) {  // what CLI11 or the file has to say
    error = e.what();
  }
  if (!quiet_) std::cerr << app_.get_name() << ": " << error << "\n--help lists the options\n";
  return usage_error;
}

void Options::apply_toml(const std::string& text, const std::string& name) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    throw std::runtime_error(
        fmt::format("{}:{}: not valid TOML: {}", name, e.source().begin.line, e.description()));
  }
  for (const auto& [key, node] : table) {
    const std::string where = fmt::format("{}:{}: ", name, key.source().begin.line);
    auto entry = std::ranges::find(entries_, key.str(), &Entry::name);
    if (entry == entries_.end()) {
      throw std::runtime_error(fmt::format("{}unknown key '{}'; did you mean '{}'?", where, key.str(),
                                           did_you_mean(std::string(key.str()))));
    }
    CLI::Option& option = *entry->option;
    const bool merges = std::holds_alternative<NamedNumbers*>(entry->variable);
    if (!option.empty() && !merges) continue;  // the command line wins
    try {
      std::vector<std::string> arguments = std::visit(ToArguments{node}, entry->variable);
      const std::vector<std::string> from_command_line = option.results();
      arguments.insert(arguments.end(), from_command_line.begin(), from_command_line.end());
      if (arguments.empty()) continue;  // an empty table
      option.clear();
      option.add_result(arguments);
      option.run_callback();
    } catch (const std::exception& e) {
      throw std::runtime_error(fmt::format("{}'{}': {}", where, key.str(), e.what()));
    }
  }
}

std::string Options::toml() const {
  std::string text;
  for (const Entry& entry : entries_) {
    std::visit([&](const auto* value) { text += fmt::format("{} = {}\n", entry.name, toml_text(*value)); },
               entry.variable);
  }
  return text;
}

std::string Options::did_you_mean(const std::string& name) const {
  auto distance = [&](const Entry& entry) { return edit_distance(name, entry.name); };
  auto nearest = std::ranges::min_element(entries_, {}, distance);
  return nearest == entries_.end() ? "help" : nearest->name;
}

}  // namespace tegula::io
