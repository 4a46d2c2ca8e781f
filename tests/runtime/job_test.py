"""How a job ends: each scenario of scenario.cpp on one and on several ranks, by exit code, message and time."""
import re
import signal
import subprocess
import sys
import time
import unittest

SCENARIO = sys.argv.pop(1)
# Of three ranks, each of which takes a tile from the one before it, the last is lost.
RING = ["waits for rank 2: the ring's tile", "waits for rank 0: the ring's tile"]


def command(ranks, scenario):
    launcher = [] if ranks == 1 else ["mpiexec", "--oversubscribe", "-n", str(ranks)]
    return launcher + [SCENARIO, scenario]


def run(ranks, scenario):
    start = time.monotonic()
    done = subprocess.run(command(ranks, scenario), capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("tegula: rank", "own words"))]
    lines.sort(key=lambda line: re.match(r"tegula: rank \d on \S+: waits for ", line) is not None)
    others = [line for line in done.stderr.splitlines()
              if line.strip() and not line.startswith(("tegula:", "own words", "  rank", "  0"))]
    return done.returncode, lines, others, time.monotonic() - start


class Job(unittest.TestCase):
    def check_failure(self, scenario, message, ranks=(1, 3), waiting=()):
        """Where a rank fails alone, the others of three say what they wait for: `waiting`."""
        for n in ranks:
            with self.subTest(ranks=n):
                returned, lines, others, seconds = run(n, scenario)
                self.assertEqual(returned, 1)
                self.assertIn(message, lines[0])
                self.check_waiting(lines[1:], waiting if n == 3 else ())
                self.assertEqual(others, [])
                self.assertLess(seconds, 10)

    def check_waiting(self, lines, expected):
        self.assertEqual(len(lines), len(expected), lines)
        for line, what in zip(sorted(lines), expected):
            self.assertRegex(line, rf"^tegula: rank \d on \S+: {what}$")

    def test_exception_through_run(self):
        self.check_failure("throw-on-last", "disk full", waiting=RING)

    def test_exception_out_of_main(self):
        self.check_failure("unhandled", "disk full", waiting=RING)

    def test_same_mistake_on_all_ranks_is_told_once(self):
        self.check_failure("throw-on-all", "no such file")

    def test_exception_in_a_kernel(self):
        self.check_failure("kernel", "label 10 of 10 classes", waiting=RING)

    def test_exception_caught_behind_the_runtime(self):
        self.check_failure("caught", "own words: disk full", ranks=(3,), waiting=RING)

    def test_unknown_scheduler_lists_the_known_ones(self):
        self.check_failure("unknown-scheduler", "there is no scheduler 'best'; StarPU has: dm, dmda, dmdap", ranks=(1, 2))

    def test_no_worker_left(self):
        self.check_failure("no-worker", "no CPU worker and no GPU is left for rank 0", ranks=(1, 2))

    def test_before_there_is_a_runtime(self):
        for n in (1, 3):
            with self.subTest(ranks=n):
                returned, lines, _, _ = run(n, "early")
                self.assertEqual(returned, 1)
                self.assertEqual(len(lines), 1, lines)
                self.assertIn("not an option", lines[0])

    def test_a_rank_that_stops_is_named_with_what_is_waited_for(self):
        returned, lines, _, seconds = run(3, "stopped")
        self.assertEqual(returned, 1)
        self.assertRegex(lines[0], r"^tegula: rank 0 on \S+: nothing was heard of rank 2 on \S+ for 3 s: it is stopped, or its "
                                   r"node is gone; this rank waits for rank 2: the ring's tile$")
        self.check_waiting(lines[1:], ["waits for rank 2: to take a message"])
        self.assertLess(seconds, 20)

    def test_a_rank_that_is_busy_is_left_alone(self):
        returned, lines, _, seconds = run(3, "busy")
        self.assertEqual((returned, lines), (0, []))
        self.assertGreater(seconds, 6)

    def test_a_rank_that_is_killed_ends_all(self):
        returned, lines, others, seconds = run(3, "killed")
        self.assertNotEqual(returned, 0)
        self.assertRegex(lines[0], r"^tegula: rank 0 on \S+: nothing is heard of rank 2 on \S+: it has died, or is stopped; this rank "
                                   r"waits for rank 2: the ring's tile$")
        self.check_waiting(lines[1:], ["waits for rank 2: to take a message"])
        self.assertRegex(" ".join(others), r"process rank 2 .*on node \S+ exited on\s+signal 9")
        self.assertLess(seconds, 20)

    def test_exit_of_one_rank_ends_all(self):
        returned, lines, _, seconds = run(3, "exit")
        self.assertNotEqual(returned, 0)
        self.check_waiting(lines, RING)
        self.assertLess(seconds, 10)

    def test_a_signal_on_one_rank_stops_all_cleanly(self):
        for n in (1, 3):
            with self.subTest(ranks=n):
                done = subprocess.run(command(n, "signal"), capture_output=True, text=True, timeout=30)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout, "stopped cleanly\n")

    def test_control_c_and_sigterm(self):
        for n, which in ((1, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGTERM)):
            with self.subTest(ranks=n, signal=which):
                job = subprocess.Popen(command(n, "none"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                time.sleep(1.5)
                job.send_signal(which)
                out, _ = job.communicate(timeout=20)
                self.assertEqual(out, "stopped cleanly\n")
                if n == 1:
                    self.assertEqual(job.returncode, 0)


if __name__ == "__main__":
    unittest.main()
