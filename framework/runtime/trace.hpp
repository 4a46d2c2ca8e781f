// Trace: has StarPU record what workers and messages do, and keeps beside it what StarPU does not know: which program ran,
// under which plan, and which tile each message brings. docs/traces.md describes the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/runtime/environment.hpp"
#include "framework/runtime/job.hpp"

namespace tegula::detail {

class Trace {
 public:
  static constexpr const char* format = "tegula-trace/1";

  // To be made before StarPU starts. Throws std::runtime_error if this StarPU cannot record, or if the folder holds a trace
  // already or cannot be written to.
  Trace(const std::filesystem::path& folder, const Job& job, int argc, const char* const* argv,
        EnvironmentDefaults& environment);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

  // The one of the Runtime that lives; null where nothing is recorded.
  static Trace* current();

  void started(int cpu_workers, int gpus, const std::string& scheduler);  // StarPU has
  // A fact about the run, for run.json.
  void note(const std::string& key, nlohmann::ordered_json value);
  // A program, with what it does in each run, as predicted. Returns its number.
  std::size_t add_program(nlohmann::ordered_json figures);
  // The tile that a program's messages with this tag bring into a handle of this rank.
  void name_message(std::size_t program, const void* handle, std::int64_t tag, std::string what);

  // The submission of one run of a program: its tasks carry the number of the step, 0 where no state is updated.
  class Run {
   public:
    Run(Trace* trace, std::size_t program, std::int64_t step);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    ~Run();

   private:
    bool traced_;
  };

  // StarPU has stopped and left its file: writes this rank's part of the rest.
  void write() const;

 private:
  void stop_if_full();

  std::filesystem::path folder_;
  const Job& job_;
  nlohmann::ordered_json run_, rank_;
  std::vector<std::int64_t> runs_;  // by program
  // FxT's buffer: how many words it has, and how many are used. Null where FxT does not tell.
  const volatile std::size_t *allocated_ = nullptr, *filled_ = nullptr;
  bool stopped_ = false;        // before the run has ended
  std::int64_t last_step_ = 0;  // recorded
};

}  // namespace tegula::detail
