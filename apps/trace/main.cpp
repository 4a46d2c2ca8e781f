// Reads what a run recorded with --trace: prints where its time went, and writes it for other programs to look at.
//
//   tegula-trace FOLDER            summary; trace.json, trace.paje, report.json and report.html go into FOLDER
//   tegula-trace diff BEFORE AFTER what got slower
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "apps/trace/trace.hpp"
#include "framework/io/file.hpp"

using namespace tegula;

namespace {

nlohmann::ordered_json report_of(const std::string& folder) {
  const trace::Trace trace = trace::read(folder);
  for (const std::string& remark : trace.remarks) fmt::print(stderr, "{}: {}\n", folder, remark);
  return trace::report(trace);
}

void read(const std::filesystem::path& folder) {
  const trace::Trace trace = trace::read(folder);
  const nlohmann::ordered_json report = trace::report(trace);
  io::write_file(folder / "trace.json", trace::chrome(trace));
  io::write_file(folder / "trace.paje", trace::paje(trace));
  io::write_file(folder / "report.json", report.dump() + "\n");
  io::write_file(folder / "report.html", trace::html(report));
  fmt::print("{}", trace::summary(report));
  for (const std::string& remark : trace.remarks) fmt::print(stderr, "{}: {}\n", folder.string(), remark);
  fmt::print("\nwritten into {}: report.html, report.json, trace.json (Perfetto), trace.paje (ViTE)\n",
             folder.string());
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, before, after;
  CLI::App app("Shows where the time of a run went that was recorded with --trace.", "tegula-trace");
  app.add_option("folder", folder, "the one that --trace named")->type_name("FOLDER");
  CLI::App* diff = app.add_subcommand("diff", "Says what got slower from one run to another.");
  diff->add_option("before", before, "folder of a trace")->type_name("BEFORE")->required();
  diff->add_option("after", after, "folder of another")->type_name("AFTER")->required();
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("tegula-trace: {}; see --help\n", error.what());
  });
  try {
    app.parse(argc, argv);
    if (!diff->parsed() && folder.empty()) throw CLI::RequiredError("FOLDER");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (diff->parsed())
      fmt::print("{}", trace::difference(report_of(before), report_of(after)));
    else
      read(folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tegula-trace: {}\n", error.what());
    return 1;
  }
  return 0;
}
