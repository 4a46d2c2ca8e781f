// A program that goes wrong as its first argument says; job_test.py looks at how it ends.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

#include "framework/tile/submit.hpp"

using namespace tegula;

namespace {

// Steps that go on until told otherwise, with a message round the ring in each.
int train(Runtime& runtime, int steps, const std::function<void(int step)>& at_step) {
  Tile mine(runtime, {100}, f32), theirs(runtime, {100}, f32);
  for (int step = 0; step < steps; ++step) {
    at_step(step);
    submit::fill(mine, [](void* data) { *static_cast<float*>(data) = 1; });
    if (runtime.size() > 1) {
      submit::send(runtime, mine, (runtime.rank() + 1) % runtime.size(), 0);
      submit::receive(runtime, theirs, (runtime.rank() + runtime.size() - 1) % runtime.size(), 0,
                      "the ring's tile");
    }
    if (runtime.agree() == Runtime::interrupt_code) {
      runtime.wait();
      if (runtime.rank() == 0) std::puts("stopped cleanly");
      return 0;
    }
    runtime.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  if (scenario == "unknown-scheduler") setenv("STARPU_SCHED", "best", 1);
  const auto body = [&]() -> int {
    if (scenario == "early") throw std::runtime_error("not an option");
    RuntimeOptions options;
    if (scenario == "no-worker") options.cpu_workers = 0;
    if (scenario == "stopped" || scenario == "busy") options.silence_limit_s = 3;
    Runtime runtime(argc, argv, options);
    const bool last = runtime.rank() == runtime.size() - 1;
    return train(runtime, scenario == "busy" ? 20 : 2000, [&](int step) {
      if (step != 10) return;
      if (scenario == "throw-on-all") throw std::runtime_error("no such file");
      if (!last) return;
      if (scenario == "throw-on-last" || scenario == "unhandled" || scenario == "caught")
        throw std::runtime_error("disk full");
      if (scenario == "kernel") {
        const Tile tile(runtime, {1}, f32);
        submit::fill(tile, [](void*) { throw std::runtime_error("label 10 of 10 classes"); });
      }
      if (scenario == "exit") std::exit(7);
      if (scenario == "signal") raise(SIGTERM);
      if (scenario == "killed") raise(SIGKILL);
      if (scenario == "stopped") raise(SIGSTOP);
      if (scenario == "busy") std::this_thread::sleep_for(std::chrono::seconds(6));
    });
  };
  if (scenario == "unhandled") return body();
  if (scenario == "caught") {
    try {
      return body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "own words: %s\n", error.what());
      return 3;
    }
  }
  return run(body);
}
