// How threads that have nothing to do wait, where cores are few.
//
// StarPU and StarPU-MPI poll: the last idle worker of a process spins on its queue and the message thread on MPI_Test.
// On cores of their own that is right. Where ranks share cores, or threads of a rank do, the pollers take the core from
// those they wait for: with 2 ranks on 2 cores three quarters of all processor time went into idle workers.
#pragma once

#include <starpu.h>

namespace tegula::detail {

// `policy` with one difference: a CPU worker that has found no task for a while sleeps until one is pushed.
starpu_sched_policy sleeping_when_idle(const starpu_sched_policy& policy);

// Whether a thread that calls MPI_Test in vain pauses from time to time.
void pause_between_message_tests(bool pause);

}  // namespace tegula::detail
