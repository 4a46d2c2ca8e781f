// A trace in the formats that other programs read.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "apps/trace/trace.hpp"

namespace tegula::trace {

using nlohmann::ordered_json;

namespace {

constexpr std::string_view page =
#include "report_page.inc"
    ;

// One row of Chrome's viewer per worker: tid; one group per rank: pid.
ordered_json chrome_event(const Worker& worker, int number, const char* phase, double time) {
  return {{"ph", phase}, {"pid", worker.rank}, {"tid", number}, {"ts", time}};
}

// As Paje wants it: fractions of red, green and blue.
std::string color(const std::string& name) {
  const std::size_t hash = std::hash<std::string>{}(name);
  const auto part = [&](int shift) { return 0.4 + 0.5 * static_cast<double>(hash >> shift & 0xff) / 255; };
  return fmt::format("{:.2f} {:.2f} {:.2f}", part(0), part(8), part(16));
}

}  // namespace

std::string chrome(const Trace& trace) {
  ordered_json events = ordered_json::array();
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    events.push_back({{"ph", "M"},
                      {"pid", rank},
                      {"name", "process_name"},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
  for (std::size_t i = 0; i < trace.workers.size(); ++i)
    events.push_back({{"ph", "M"},
                      {"pid", trace.workers[i].rank},
                      {"tid", i},
                      {"name", "thread_name"},
                      {"args", {{"name", trace.workers[i].name}}}});
  for (const Task& task : trace.tasks) {
    ordered_json event = chrome_event(trace.workers[task.worker], task.worker, "X", task.start);
    event["dur"] = task.end - task.start;
    event["name"] = trace.layers[task.layer] + "." + trace.ops[task.op];
    event["cat"] = pass_names[static_cast<int>(task.pass)];
    event["args"] = {{"layer", trace.layers[task.layer]}, {"op", trace.ops[task.op]}, {"tile", task.tile},
                     {"micro_batch", task.micro_batch},   {"step", task.step},        {"flops", task.flops}};
    events.push_back(std::move(event));
  }
  for (const Stay& stay : trace.states) {
    if (stay.state == State::idle) continue;  // seen as the gap it is
    ordered_json event = chrome_event(trace.workers[stay.worker], stay.worker, "X", stay.start);
    event["dur"] = stay.end - stay.start;
    event["name"] = state_names[static_cast<int>(stay.state)];
    event["cat"] = "state";
    events.push_back(std::move(event));
  }
  for (std::size_t i = 0; i < trace.messages.size(); ++i) {
    const Message& message = trace.messages[i];
    for (const auto& [phase, time] : {std::pair("b", message.start), std::pair("e", message.end)})
      events.push_back({{"ph", phase},
                        {"pid", message.from},
                        {"tid", 0},
                        {"ts", time},
                        {"id", i},
                        {"cat", "message"},
                        {"name", message.what},
                        {"args", {{"from", message.from}, {"to", message.to}, {"bytes", message.bytes}}}});
  }
  for (const MemoryUse& use : trace.memory)
    for (std::size_t i = 0; i < use.time.size(); ++i)
      events.push_back({{"ph", "C"},
                        {"pid", use.rank},
                        {"ts", use.time[i]},
                        {"name", "memory of " + use.node},
                        {"args", {{"bytes", use.bytes[i]}}}});
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

namespace {

constexpr const char* paje_header = R"(%EventDef PajeDefineContainerType 0
% Alias string
% Type string
% Name string
%EndEventDef
%EventDef PajeDefineStateType 1
% Alias string
% Type string
% Name string
%EndEventDef
%EventDef PajeDefineVariableType 2
% Alias string
% Type string
% Name string
% Color color
%EndEventDef
%EventDef PajeDefineLinkType 3
% Alias string
% Type string
% StartContainerType string
% EndContainerType string
% Name string
%EndEventDef
%EventDef PajeDefineEntityValue 4
% Alias string
% Type string
% Name string
% Color color
%EndEventDef
%EventDef PajeCreateContainer 5
% Time date
% Alias string
% Type string
% Container string
% Name string
%EndEventDef
%EventDef PajeDestroyContainer 6
% Time date
% Type string
% Name string
%EndEventDef
%EventDef PajePushState 7
% Time date
% Container string
% Type string
% Value string
% Layer string
% Pass string
% Tile string
% MicroBatch string
% Step string
% Flops string
%EndEventDef
%EventDef PajePopState 8
% Time date
% Container string
% Type string
%EndEventDef
%EventDef PajePushState 9
% Time date
% Container string
% Type string
% Value string
%EndEventDef
%EventDef PajeStartLink 10
% Time date
% Container string
% Type string
% StartContainer string
% Value string
% Key string
% What string
%EndEventDef
%EventDef PajeEndLink 11
% Time date
% Container string
% Type string
% EndContainer string
% Value string
% Key string
%EndEventDef
%EventDef PajeSetVariable 12
% Time date
% Container string
% Type string
% Value double
%EndEventDef
0 J 0 Job
0 R J Rank
0 W R Worker
0 M R Memory
1 K W Kernel
1 S W State
2 B M Bytes "0.3 0.3 0.8"
3 L J R R Message
)";

std::string seconds(double us) { return fmt::format("{:.9f}", us * 1e-6); }

}  // namespace

std::string paje(const Trace& trace) {
  std::string text = paje_header;
  for (std::size_t i = 0; i < trace.ops.size(); ++i)
    text += fmt::format("4 k{} K \"{}\" \"{}\"\n", i, trace.ops[i], color(trace.ops[i]));
  for (std::size_t i = 0; i < std::size(state_names); ++i)
    text += fmt::format("4 s{} S \"{}\" \"{}\"\n", i, state_names[i], color(state_names[i]));
  text += "5 0 job J 0 job\n";
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    text += fmt::format("5 0 r{0} R job \"rank {0}\"\n", rank);
  for (std::size_t i = 0; i < trace.workers.size(); ++i)
    text +=
        fmt::format("5 0 w{0} W r{1} \"rank {1} {2}\"\n", i, trace.workers[i].rank, trace.workers[i].name);
  for (std::size_t i = 0; i < trace.memory.size(); ++i)
    text += fmt::format("5 0 m{0} M r{1} \"rank {1} {2}\"\n", i, trace.memory[i].rank, trace.memory[i].node);

  // What ends at a time comes before what begins there.
  std::vector<std::tuple<double, int, std::string>> events;
  for (const Task& task : trace.tasks) {
    events.emplace_back(
        task.start, 1,
        fmt::format("7 {} w{} K k{} \"{}\" {} \"{}\" {} {} {:.0f}\n", seconds(task.start), task.worker,
                    task.op, trace.layers[task.layer], pass_names[static_cast<int>(task.pass)],
                    task.tile.empty() ? "-" : task.tile, task.micro_batch, task.step, task.flops));
    events.emplace_back(task.end, 0, fmt::format("8 {} w{} K\n", seconds(task.end), task.worker));
  }
  for (const Stay& stay : trace.states) {
    events.emplace_back(
        stay.start, 1,
        fmt::format("9 {} w{} S s{}\n", seconds(stay.start), stay.worker, static_cast<int>(stay.state)));
    events.emplace_back(stay.end, 0, fmt::format("8 {} w{} S\n", seconds(stay.end), stay.worker));
  }
  for (std::size_t i = 0; i < trace.messages.size(); ++i) {
    const Message& m = trace.messages[i];
    events.emplace_back(
        m.start, 1,
        fmt::format("10 {} job L r{} {} {} \"{}\"\n", seconds(m.start), m.from, m.bytes, i, m.what));
    events.emplace_back(m.end, 2, fmt::format("11 {} job L r{} {} {}\n", seconds(m.end), m.to, m.bytes, i));
  }
  for (std::size_t i = 0; i < trace.memory.size(); ++i)
    for (std::size_t k = 0; k < trace.memory[i].time.size(); ++k)
      events.emplace_back(
          trace.memory[i].time[k], 1,
          fmt::format("12 {} m{} B {:.0f}\n", seconds(trace.memory[i].time[k]), i, trace.memory[i].bytes[k]));
  std::ranges::stable_sort(
      events, {}, [](const auto& event) { return std::pair(std::get<0>(event), std::get<1>(event)); });
  for (const auto& event : events) text += std::get<2>(event);
  const std::string end = seconds(trace.duration);
  for (std::size_t i = 0; i < trace.memory.size(); ++i) text += fmt::format("6 {} M m{}\n", end, i);
  for (std::size_t i = 0; i < trace.workers.size(); ++i) text += fmt::format("6 {} W w{}\n", end, i);
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    text += fmt::format("6 {} R r{}\n", end, rank);
  return text + "6 " + end + " J job\n";
}

std::string html(const ordered_json& report) {
  constexpr std::string_view mark = "/*REPORT*/";
  const std::size_t at = page.find(mark);
  std::string data;
  for (const std::string text = report.dump(); char c : text)
    data += c == '<' ? "\\u003c" : std::string(1, c);  // no </script>
  return std::string(page.substr(0, at)) + data + std::string(page.substr(at + mark.size()));
}

}  // namespace tegula::trace
