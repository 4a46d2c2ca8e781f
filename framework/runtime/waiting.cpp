#include "framework/runtime/waiting.hpp"

#include <mpi.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tegula::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto patience =
    std::chrono::microseconds(50);  // how long an idle worker spins: of the order of a wake-up
// Work that does not come through the scheduler (StarPU's own shutdown, say) is seen after this time.
constexpr auto longest_sleep = std::chrono::milliseconds(1);

starpu_sched_policy wrapped;
std::atomic<std::uint32_t> pushes = 0, sleepers = 0;
std::mutex mutex;
std::condition_variable pushed;

int push_task(starpu_task* task) {
  const int result = wrapped.push_task(task);
  ++pushes;
  if (sleepers > 0) {
    { std::scoped_lock lock(mutex); }  // the sleeper has either seen the new count or is waiting
    pushed.notify_all();
  }
  return result;
}

starpu_task* pop_task(unsigned context) {
  thread_local Clock::time_point idle_since = Clock::time_point::max();
  const std::uint32_t seen = pushes;
  starpu_task* task = wrapped.pop_task(context);
  if (task) {
    idle_since = Clock::time_point::max();
    return task;
  }
  const Clock::time_point now = Clock::now();
  idle_since = std::min(idle_since, now);
  if (now - idle_since < patience) return nullptr;
  starpu_worker_relax_on();  // others may act on this worker while it sleeps
  {
    std::unique_lock lock(mutex);
    ++sleepers;
    pushed.wait_for(lock, longest_sleep, [&] { return pushes != seen; });
    --sleepers;
  }
  starpu_worker_relax_off();
  return wrapped.pop_task(context);
}

std::atomic<bool> pause_between_tests = false;

// A message within a node takes some 10 us, so the first pauses are short; who has waited for 1 ms can wait longer.
constexpr int tests_per_pause = 16, short_pauses = 32;
constexpr long short_pause_ns = 20'000, long_pause_ns = 100'000;

void pause_for(long nanoseconds) {
  // The kernel may delay a wake-up by the timer slack of the thread, 50 us if nobody asks for less.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);
  const timespec duration{0, nanoseconds};
  nanosleep(&duration, nullptr);
}

}  // namespace

starpu_sched_policy sleeping_when_idle(const starpu_sched_policy& policy) {
  wrapped = policy;
  starpu_sched_policy sleeping = policy;
  sleeping.push_task = push_task;
  sleeping.pop_task = pop_task;
  return sleeping;
}

void pause_between_message_tests(bool pause) { pause_between_tests = pause; }

}  // namespace tegula::detail

// StarPU-MPI's thread waits by calling this without end. MPI provides for such interception: its profiling interface.
extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  using namespace tegula::detail;
  thread_local int in_vain = 0;  // tests since the last message
  const int result = PMPI_Test(request, flag, status);
  if (*flag) {
    in_vain = 0;
  } else if (++in_vain % tests_per_pause == 0 && pause_between_tests.load(std::memory_order_relaxed)) {
    const bool brief = in_vain <= tests_per_pause * short_pauses;
    pause_for(brief ? short_pause_ns : long_pause_ns);
    if (!brief) in_vain -= tests_per_pause;  // counts no further
  }
  return result;
}
