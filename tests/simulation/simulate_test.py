"""tegula-simulate as its users meet it: figures against what is known beforehand, traces of many ranks, and errors.

    tests/simulation/simulate_test.py tegula-simulate tegula-trace fashion_mnist gpt [NAME OF A TEST...]
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "app"), str(TESTS / "trace")]
import gpt_runs
from gpt_runs import launch
from readers import check_chrome, check_pj_dump

SIMULATE, TRACE, FASHION_MNIST, GPT = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
FAILURE, USAGE = 1, 2
CLUSTER = """
name = "four small nodes"
[device.core]
gflops = {f32 = 100}
bandwidth = 10
overhead = 5
power = 3
[node.two]
cpu = "core"
cores = 2
memory = 8
network = {bandwidth = 2, latency = 20}
power = 10
[[nodes]]
type = "two"
count = 16
"""


def run(*command, timeout=gpt_runs.LIMIT_S):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                          env=gpt_runs.ENVIRONMENT)


class SimulateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        cls.root = pathlib.Path(cls.temporary.name)
        cls.cluster = cls.root / "cluster.toml"
        cls.cluster.write_text(CLUSTER)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def simulate(self, ranks, *program, options=(), cluster=None):
        done = run(SIMULATE, "--cluster", cluster or self.cluster, "--ranks", ranks, *options, "--", *program)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def figures(self, ranks, *program, **more):
        return json.loads(self.simulate(ranks, *program, options=["--json"], **more))

    def test_a_step_is_what_the_program_and_the_estimator_say(self):
        program = [FASHION_MNIST, "--tile", "batch=64", "--workers", 1]
        found = json.loads(self.simulate(2, *program, options=["--json", "--ranks-per-node", 2]))
        estimate = run(*launch(FASHION_MNIST, 2, *program[1:], "--out", self.root / "est", "--estimate", self.cluster)).stdout
        seconds = float(re.search(r"step +(\S+) s", estimate)[1])
        self.assertAlmostEqual(found["step_s"], seconds, delta=0.1 * seconds)
        self.assertAlmostEqual(found["items_per_s"], 256 / found["step_s"])
        self.assertIn(f"from {found['tasks']} tasks and {found['messages']} messages per step", estimate)
        self.assertEqual(found["bytes"], {"within node 0": found["sent_bytes"]})
        self.assertGreater(found["joules"], 10 * found["step_s"])  # what the node takes beside its cores

    def test_bytes_over_links(self):
        found = self.figures(4, FASHION_MNIST, "--tile", "batch=64")
        for way in ("out", "in"):
            self.assertAlmostEqual(sum(found["bytes"][f"node {node} {way}"] for node in range(4)), found["sent_bytes"])

    def test_the_same_figures_again(self):
        program = [FASHION_MNIST, "--model", "cnn", "--tile", "batch=32"]
        first, second = self.figures(2, *program), self.figures(2, *program)
        for once in (first, second):
            del once["simulation_s"]
        self.assertEqual(first, second)

    def test_a_faster_device_takes_less(self):
        program = [FASHION_MNIST, "--tile", "batch=64"]
        fast = self.root / "fast.toml"
        fast.write_text(CLUSTER.replace("f32 = 100", "f32 = 400"))
        self.assertLess(self.figures(1, *program, cluster=fast)["step_s"], 0.75 * self.figures(1, *program)["step_s"])

    def test_gpus(self):
        cluster = TESTS.parent / "apps" / "clusters" / "h100.toml"
        data = gpt_runs.prepare(GPT, self.root)
        text = self.simulate(2, GPT, "train", "--data", data, "--mesh", "data=2", "--tile", "batch=2",
                             *gpt_runs.flags(gpt_runs.SHAPE), *gpt_runs.flags(gpt_runs.KINDS["gpt2"]), cluster=cluster)
        self.assertRegex(text, r"2 ranks on 1 nodes\nstep +\S+ s, \d+ tokens/s")
        self.assertIn("within node 0", text)

    def test_a_trace_of_sixteen_ranks(self):
        folder = self.root / "sixteen"
        text = self.simulate(16, FASHION_MNIST, "--tile", "batch=16", "--steps", 4, options=["--trace", folder])
        self.assertIn("16 ranks on 16 nodes", text)
        done = run(TRACE, folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("simulated", done.stdout)
        report = json.loads((folder / "report.json").read_text())
        self.assertEqual({worker["rank"] for worker in report["workers"]}, set(range(16)))
        rows = check_chrome(json.loads((folder / "trace.json").read_text())["traceEvents"])
        self.assertEqual(len(rows), len(report["workers"]))
        for rank, row in enumerate(report["communication_bytes"]):
            program, *_ = json.loads((folder / f"rank_{rank}.json").read_text())["programs"]
            self.assertEqual(sum(row), program["sent_bytes"] * program["runs"])
        if not shutil.which("pj_dump"):
            self.skipTest("no pj_dump (Debian's package pajeng)")
        check_pj_dump(self, folder, report)

    # What can be wrong

    def refused(self, code, words, *arguments):
        done = run(SIMULATE, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_bad_clusters(self):
        for change, words in [(("cpu = \"core\"", "cpu = \"cor\""), ["bad.toml:9", "no device 'cor'", "core"]),
                              (("bandwidth = 2,", "bandwidth = 0,"), ["bad.toml", "a rate of 0"])]:
            bad = self.root / "bad.toml"
            bad.write_text(CLUSTER.replace(*change))
            self.refused(FAILURE, words, "--cluster", bad, "--", FASHION_MNIST)
        self.refused(FAILURE, ["nowhere.toml"], "--cluster", self.root / "nowhere.toml", "--", FASHION_MNIST)

    def test_more_cores_than_a_rank_can_have(self):
        many = self.root / "many.toml"
        many.write_text(CLUSTER.replace("cores = 2", "cores = 128"))
        self.refused(FAILURE, ["128 cores of a two", "--ranks-per-node"], "--cluster", many, "--", FASHION_MNIST)

    def test_bad_command_lines(self):
        self.refused(FAILURE, ["17 ranks", "16"], "--cluster", self.cluster, "--ranks", 17, "--", FASHION_MNIST)
        self.refused(FAILURE, ["no program to run"], "--cluster", self.cluster)
        self.refused(USAGE, ["--cluster is required"])
        self.refused(FAILURE, ["nothing.simulated.so", "scripts/quickstart simulate"], "--cluster", self.cluster, "--",
                     self.root / "nothing")
        self.refused(FAILURE, ["unknown option --bad"], "--cluster", self.cluster, "--", FASHION_MNIST, "--bad")
        self.refused(FAILURE, ["3 steps", "4 is the least"], "--cluster", self.cluster, "--", FASHION_MNIST, "--steps", 3)
        self.refused(FAILURE, ["is not empty"], "--cluster", self.cluster, "--trace", TESTS, "--", FASHION_MNIST)


if __name__ == "__main__":
    unittest.main()
