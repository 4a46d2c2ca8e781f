#include "apps/trace/starpu_files.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace tegula::trace {
namespace {

// Hands out the lines of a text, and says where in it something is wrong.
class Lines {
 public:
  Lines(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  bool next(std::string_view& line) {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++number_;
    return true;
  }

  [[noreturn]] void fail(std::string_view what, std::string_view given) const {
    throw std::runtime_error(
        fmt::format("{}:{}: {} is '{}': StarPU's reader has not written this; take the one of the "
                    "StarPU that recorded the trace",
                    name_, number_, what, given.substr(0, 80)));
  }

  template <class T>
  T integer(std::string_view what, std::string_view text) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail(what, text);
    return value;
  }

  double number(std::string_view what, std::string_view text) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) fail(what, text);
    return value;
  }

  double time_us(std::string_view text) const {
    return 1e3 * number("a time", text);
  }  // StarPU has milliseconds

  int small(std::string_view what, std::string_view text) const {
    const int value = integer<int>(what, text);
    if (value < 0 || value >= 1 << 20) fail(what, text);
    return value;
  }

  // RANK_NUMBER; where there is one rank, NUMBER.
  std::uint64_t job(std::string_view text) const {
    const std::size_t bar = text.find('_');
    const bool one = bar == std::string_view::npos;
    const int rank = one ? 0 : small("a rank", text.substr(0, bar));
    const auto number = integer<std::uint64_t>("a job", one ? text : text.substr(bar + 1));
    if (number >= std::uint64_t{1} << 40) fail("a job", text);
    return job_number(static_cast<std::uint64_t>(rank), number);
  }

 private:
  std::string_view rest_;
  const std::string& name_;
  std::size_t number_ = 0;
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The next word of a line, or what stands between quotes.
std::string_view take_word(std::string_view& line) {
  line = trimmed(line);
  if (line.starts_with('"')) {
    const std::size_t end = line.find('"', 1);
    const std::string_view word = line.substr(1, end == std::string_view::npos ? end : end - 1);
    line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
    return word;
  }
  const std::size_t end = line.find_first_of(" \t");
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end);
  return word;
}

// Calls field(key, value) for each line of a record, and done() behind it.
template <class Field, class Done>
void for_each_record(Lines& lines, Field field, Done done) {
  bool open = false;
  for (std::string_view line; lines.next(line);) {
    line = trimmed(line);
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      if (std::exchange(open, false)) done();
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) lines.fail("a line of a record", line);
    open = true;
    field(line.substr(0, colon), trimmed(line.substr(colon + 1)));
  }
  if (open) done();
}

}  // namespace

std::vector<RawTask> parse_tasks(std::string_view text, const std::string& name) {
  Lines lines(text, name);
  std::vector<RawTask> tasks;
  RawTask task{};
  bool known = false, control = false;
  for_each_record(
      lines,
      [&](std::string_view key, std::string_view value) {
        if (key == "Control")
          control = true;  // a hint to StarPU, which has no number of its own
        else if (key == "JobId" && !control)
          task.job = lines.job(value), known = true;
        else if (key == "Name")
          task.name = value;
        else if (key == "MPIRank")
          task.rank = value == "-1" ? 0 : lines.small("a rank", value);  // without MPI
        else if (key == "WorkerId")
          task.worker = lines.small("a worker", value);
        else if (key == "StartTime")
          task.start = lines.time_us(value);
        else if (key == "EndTime")
          task.end = lines.time_us(value);
        else if (key == "GFlop")
          task.flops = 1e9 * lines.number("GFlop", value);
        else if (key == "Iteration")
          task.step = lines.integer<std::int64_t>("an iteration", take_word(value));
        else if (key == "DependsOn" && !control)
          while (!value.empty()) {
            if (const std::string_view word = take_word(value); !word.empty())
              task.needs.push_back(lines.job(word));
            value = trimmed(value);
          }
      },
      [&] {
        if (known && !control) tasks.push_back(std::move(task));
        task = RawTask{};
        known = control = false;
      });
  return tasks;
}

std::vector<RawMessage> parse_messages(std::string_view text, const std::string& name) {
  Lines lines(text, name);
  std::vector<RawMessage> messages;
  RawMessage message;
  for_each_record(
      lines,
      [&](std::string_view key, std::string_view value) {
        if (key == "Src")
          message.from = lines.small("a rank", value);
        else if (key == "Dst")
          message.to = lines.small("a rank", value);
        else if (key == "Tag")
          message.tag = static_cast<std::int32_t>(lines.integer<std::int64_t>("a tag", value));
        else if (key == "RecvHandle")
          message.handle = value;
        else if (key == "SendTime")
          message.start = lines.time_us(value);
        else if (key == "RecvTime")
          message.end = lines.time_us(value);
        else if (key == "Size")
          message.bytes = lines.integer<std::uint64_t>("a size", value);
        else if (key == "SendJobId")
          message.sender = lines.job(value);
        else if (key == "RecvJobId")
          message.receiver = lines.job(value);
      },
      [&] {
        if (message.from < 0 || message.to < 0) lines.fail("a message", "without ranks");
        messages.push_back(std::exchange(message, RawMessage{}));
      });
  return messages;
}

namespace {

// RANK_wNUMBER and its like, or wNUMBER where there is one rank: rank and number; nothing for other names.
std::optional<std::pair<int, int>> numbered(std::string_view container, std::string_view mark) {
  int rank = 0, number = 0;
  const char* last = container.data() + container.size();
  if (const std::size_t bar = container.find('_'); bar != std::string_view::npos) {
    const auto parsed = std::from_chars(container.data(), last, rank);
    if (parsed.ec != std::errc() || parsed.ptr != container.data() + bar || rank < 0) return std::nullopt;
    container.remove_prefix(bar + 1);
  }
  if (!container.starts_with(mark)) return std::nullopt;
  const auto parsed = std::from_chars(container.data() + mark.size(), last, number);
  if (parsed.ec != std::errc() || parsed.ptr != last || number < 0) return std::nullopt;
  return std::pair(rank, number);
}

std::optional<int> message_thread(std::string_view container) {
  if (!container.ends_with("_mpict")) return std::nullopt;
  int rank = 0;
  const auto parsed = std::from_chars(container.data(), container.data() + container.size(), rank);
  if (parsed.ec != std::errc() || rank < 0 || *parsed.ptr != '_') return std::nullopt;
  return rank;
}

// The thread that drives messages pushes what it does in between, and pops it.
void set_message_state(RawThread& thread, std::vector<std::string>& stack, std::string_view event,
                       double time, std::string_view value) {
  if (event == "12") {
    if (stack.size() > 1) stack.pop_back();
  } else {
    const bool push = stack.empty() || (event == "11" && stack.size() < 1000);
    if (push) stack.emplace_back();
    stack.back() = value;
  }
  if (!stack.empty()) thread.changes.push_back({time, stack.back()});
}

}  // namespace

// Lines of events: 7 makes a container, 10 and 20 set a state (20: to a kernel), 11 and 12 push and pop one, 13 sets a variable. The
// numbers and the order of fields are StarPU's own.
RawActivity parse_activity(std::string_view text, const std::string& name) {
  Lines lines(text, name);
  RawActivity activity;
  std::map<int, std::vector<std::string>> stacks;  // of the threads that drive messages, by rank
  for (std::string_view line; lines.next(line);) {
    if (line.empty() || line.front() == '%') continue;
    const std::string_view event = take_word(line);
    if (event != "7" && event != "10" && event != "11" && event != "12" && event != "13" && event != "20")
      continue;
    const double time = lines.time_us(take_word(line));
    const std::string_view container = take_word(line), type = take_word(line), value = take_word(line);
    if (event == "7") {
      const std::string_view shown = take_word(line);
      if (const auto worker = numbered(container, "w"); worker && type == "W") {
        const std::size_t bar = shown.find('_');
        activity.threads[*worker] = {
            worker->first, std::string(shown.substr(bar == std::string_view::npos ? 0 : bar + 1)), {}};
      } else if (const auto rank = message_thread(container)) {
        activity.threads[{*rank, -1}].rank = *rank;
      }
    } else if (event == "13") {
      if (const auto node = numbered(container, "mm"); node && type == "use") {
        RawMemory& memory = activity.memory[*node];
        memory.rank = node->first;
        memory.node = fmt::format("node {}", node->second);
        memory.time.push_back(time);
        memory.bytes.push_back(std::round(lines.number("memory", value) * (1 << 20)));
      }
    } else if (type == "WS") {
      const auto worker = numbered(container, "w");
      const auto thread = worker ? activity.threads.find(*worker) : activity.threads.end();
      if (thread == activity.threads.end()) continue;
      if (event == "10") thread->second.changes.push_back({time, std::string(value)});
      if (event == "20") thread->second.changes.push_back({time, ""});
    } else if (type == "CtS") {
      const auto rank = message_thread(container);
      if (rank && activity.threads.contains({*rank, -1}))
        set_message_state(activity.threads[{*rank, -1}], stacks[*rank], event, time, value);
    }
  }
  return activity;
}

}  // namespace tegula::trace
