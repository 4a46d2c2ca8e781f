// How StarPU-MPI waits for messages. Its progress thread calls MPI_Test without end while any message is
// outstanding, which is right on a core of its own and ruinous when the thread shares a core with a worker: on 2
// cores, two ranks spent a scheduler's slice (1-4 ms) on every hop. So MPI_Test is intercepted, the way MPI
// provides for that (its profiling interface, PMPI), and sleeps briefly after a series of fruitless calls.
#include <mpi.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>

#include "framework/runtime/job.hpp"

namespace {

std::atomic<bool> polite = false;

constexpr int fruitless_calls = 64;  // of the order of 10 us, longer than a message within a node takes
constexpr long pause_ns = 20'000;

void pause_briefly() {
  // The kernel may delay a wake-up by the timer slack, 50 us if nobody asks for less.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);
  const timespec duration{0, pause_ns};
  nanosleep(&duration, nullptr);
}

}  // namespace

void tegula::detail::set_polite_polling(bool value) { polite.store(value, std::memory_order_relaxed); }

extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  thread_local int fruitless = 0;
  const int result = PMPI_Test(request, flag, status);
  if (*flag) {
    fruitless = 0;
  } else if (++fruitless >= fruitless_calls && polite.load(std::memory_order_relaxed)) {
    fruitless = 0;
    pause_briefly();
  }
  return result;
}
