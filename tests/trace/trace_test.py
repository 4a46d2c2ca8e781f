"""Runs the training programs with --trace and reads back what they recorded: every figure of build/apps/tegula-trace against
what the program knew beforehand, and against what another reader, pj_dump, finds in the same run.

    tests/trace/trace_test.py tegula-trace fashion_mnist gpt tile_gemm [NAME OF A TEST...]
"""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "app"))
import gpt_runs
from gpt_runs import launch
from readers import check_chrome, check_pj_dump

TRACE, FASHION_MNIST, GPT, TILE_GEMM = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
STEPS, RANKS = 10, 2
FAILURE, USAGE = 1, 2
HOST_OPS = {"input", "output"}  # tasks of ours that are no op of the graph


def run(*command, **variables):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=gpt_runs.LIMIT_S,
                          env=gpt_runs.ENVIRONMENT | variables)


def run_well(*command, **variables):
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def read_report(folder):
    run_well(TRACE, folder)
    return json.loads((folder / "report.json").read_text())


def rank_files(folder):
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(RANKS)]


def training_programs(rank):
    return [program for program in rank["programs"] if program["updates"]]


def named_tasks(report):
    """(rank, layer, op, pass, tile, step) of each task."""
    columns = report["tasks"]
    for worker, layer, op, which, tile, step in zip(columns["worker"], columns["layer"], columns["op"], columns["pass"],
                                                    columns["tile"], columns["step"]):
        yield (report["workers"][worker]["rank"], report["layers"][layer], report["ops"][op], report["passes"][which],
               tile, step)


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        cls.root = pathlib.Path(cls.temporary.name)
        cls.folder = cls.root / "two"
        cls.train(cls.folder)
        cls.output = run_well(TRACE, cls.folder).stdout
        cls.report = json.loads((cls.folder / "report.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def train(cls, folder, *arguments, ranks=RANKS, steps=STEPS, **variables):
        command = ["--steps", steps, "--tile", "batch=64", "--workers", 1, "--out", f"{folder}.out", "--trace", folder]
        return run_well(*launch(FASHION_MNIST, ranks, *command, *arguments), **variables)

    def copy(self, name):
        folder = self.root / name
        shutil.copytree(self.folder, folder)
        return folder

    # What was recorded

    def test_every_task_of_every_step_is_there_and_named(self):
        tasks = list(named_tasks(self.report))
        for rank, file in enumerate(rank_files(self.folder)):
            expected = sum(program["tasks"] * program["runs"] for program in training_programs(file))
            self.assertGreater(expected, 0)
            mine = [task for task in tasks if task[0] == rank and task[5] > 0 and task[2] not in HOST_OPS]
            self.assertEqual(len(mine), expected)
            for step in range(1, STEPS + 1):
                self.assertEqual(sum(task[5] == step for task in mine), expected // STEPS)
        names = {task[1:4] for task in tasks}
        for name in [("linear1", "contract", "forward"), ("linear2", "contract", "backward"),
                     ("linear3", "sgd", "update"), ("loss", "softmax_cross_entropy", "forward"),
                     ("image", "input", "forward"), ("loss", "output", "forward")]:
            self.assertIn(name, names)
        forward = [task for task in tasks if task[1:4] == ("linear1", "contract", "forward")]
        self.assertEqual({task[4] for task in forward}, {f"{tile},0" for tile in range(4)})
        self.assertEqual(len(forward), 4 * STEPS)

    def test_flops_are_those_of_the_program(self):
        expected = sum(program["flops"] * program["runs"] for file in rank_files(self.folder)
                       for program in training_programs(file))
        found = sum(self.report["tasks"]["flops"])
        # StarPU keeps thousands of them.
        self.assertLessEqual(abs(found - expected), 1000 * len(self.report["tasks"]["flops"]))

    def test_bytes_are_as_predicted(self):
        messages = self.report["messages"]
        matrix = [[0] * RANKS for _ in range(RANKS)]
        for sender, receiver, size, what in zip(messages["from"], messages["to"], messages["bytes"], messages["what"]):
            self.assertRegex(what, r"^tile \d+ of \S+(, evaluation)?$")
            # A rank that does not wait for the last loss begins to evaluate while others still train.
            if not what.endswith(", evaluation"):
                matrix[sender][receiver] += size
        for rank, file in enumerate(rank_files(self.folder)):
            sent = sum(program["sent_bytes"] * program["runs"] for program in training_programs(file))
            received = sum(program["received_bytes"] * program["runs"] for program in training_programs(file))
            self.assertGreater(sent, 0)
            self.assertEqual(sum(matrix[rank]), sent)
            self.assertEqual(sum(row[rank] for row in matrix), received)

    def test_a_trace_changes_no_bit_of_the_training(self):
        plain = self.root / "plain"
        run_well(*launch(FASHION_MNIST, 1, "--steps", 3, "--tile", "batch=64", "--out", plain))
        self.train(self.root / "traced", ranks=1, steps=3)
        losses = [[line["loss_hex"] for line in gpt_runs.metrics(out)] for out in (plain, self.root / "traced.out")]
        self.assertEqual(len(losses[0]), 4)
        self.assertEqual(losses[0], losses[1])

    def test_losses_and_machine(self):
        self.assertEqual(self.report["loss"]["step"], list(range(1, STEPS + 1)))
        self.assertLess(self.report["loss"]["value"][-1], self.report["loss"]["value"][0])
        described = self.report["run"]
        self.assertEqual(described["ranks"], RANKS)
        self.assertEqual(described["steps"], STEPS)
        self.assertIn("batch 256 in tiles of 64", described["plan"])
        self.assertGreater(described["gemm_peak_gflops"], 0)
        self.assertIn("--trace", described["command"])

    # What is made of it

    def test_figures_add_up(self):
        summary = self.report["summary"]
        makespan = summary["bounds"]["makespan_s"]
        for row in summary["per_worker"]:
            parts = sum(row[key] for key in ("kernel_s", "idle_s", "overhead_s", "scheduling_s", "transfer_s"))
            self.assertAlmostEqual(parts, makespan, delta=0.01 * makespan)
        kernels = sum(row["kernel_s"] for row in summary["per_worker"])
        for table in ("per_op", "per_layer"):
            self.assertAlmostEqual(sum(row["seconds"] for row in summary[table]), kernels, places=9)
            self.assertAlmostEqual(sum(row["share"] for row in summary[table]), 1)
            self.assertEqual(sum(row["tasks"] for row in summary[table]), len(self.report["tasks"]["op"]))
        self.assertAlmostEqual(summary["bounds"]["area_bound_s"], kernels / RANKS)
        # Steps follow each other, so the path is as long as the longest kernel of each, at least.
        longest = collections.defaultdict(float)
        for step, us in zip(self.report["tasks"]["step"], self.report["tasks"]["duration_us"]):
            longest[step] = max(longest[step], us * 1e-6)
        self.assertGreaterEqual(summary["bounds"]["critical_path_s"], max(longest.values()))
        self.assertLessEqual(summary["bounds"]["critical_path_s"], makespan)
        self.assertLessEqual(summary["bounds"]["efficiency"], 1)
        for line in ("contract", "linear1", "makespan", "rank 0 to 1"):
            self.assertIn(line, self.output)

    def test_pj_dump_finds_the_same_sums(self):
        if not shutil.which("pj_dump"):
            self.skipTest("no pj_dump (Debian's package pajeng)")
        check_pj_dump(self, self.folder, self.report)

    def test_chrome_trace_is_well_formed(self):
        content = json.loads((self.folder / "trace.json").read_text())
        rows = check_chrome(content["traceEvents"])
        self.assertEqual(len(rows), len(self.report["workers"]))
        kernels = [event for event in content["traceEvents"] if event["ph"] == "X" and event["cat"] != "state"]
        self.assertEqual(len(kernels), len(self.report["tasks"]["op"]))

    def test_the_page_in_a_browser(self):
        run_well(pathlib.Path(__file__).with_name("report_test.py"), self.folder / "report.html")

    def test_diff(self):
        self.assertEqual(run_well(TRACE, "diff", self.folder, self.folder).stdout, "no difference\n")
        other = self.root / "other"
        self.train(other, "--model", "cnn", ranks=1, steps=2)
        changes = run_well(TRACE, "diff", self.folder, other).stdout
        self.assertRegex(changes, r"max_pool\S* .* new\n")
        self.assertRegex(changes, r"MB +\d\S+ +0 +-")  # one rank sends nothing

    # Other programs

    def test_micro_batches_and_stages_of_a_language_model(self):
        data = gpt_runs.prepare(GPT, self.root)
        folder = self.root / "gpt"
        plan = self.root / "pipeline.toml"
        plan.write_text('mesh.stage = 2\nmicro-batches = "batch"\nschedule = "1f1b"\ntile.batch = 2\n[stages]\nalong = "stage"\n'
                        'layers = {embedding = 0, block0 = 0, block1 = 1, output = 1, loss = 1}\n')
        run_well(*launch(GPT, RANKS, "train", "--data", data, "--out", self.root / "gpt.out", "--steps", 3, "--plan", plan,
                         "--trace", folder, *gpt_runs.flags(gpt_runs.SHAPE), *gpt_runs.flags(gpt_runs.KINDS["gpt2"])))
        report = read_report(folder)
        tasks = list(named_tasks(report))
        batches = [batch for batch, task in zip(report["tasks"]["micro_batch"], tasks) if task[2] == "attention"]
        self.assertEqual(set(batches), {0, 1, 2})
        stages = collections.defaultdict(set)
        for rank, layer, op, *_ in tasks:
            if op == "attention":
                stages[rank].add(layer.split(".")[0])
        self.assertEqual(len(stages), RANKS)
        self.assertFalse(stages[0] & stages[1], stages)
        for rank, file in enumerate(rank_files(folder)):
            expected = sum(program["tasks"] * program["runs"] for program in training_programs(file))
            self.assertEqual(sum(t[0] == rank and t[5] > 0 and t[2] not in HOST_OPS for t in tasks), expected)
        for row in report["summary"]["per_rank"]:
            self.assertGreater(row["bubble_share"], 0)
            self.assertLess(row["bubble_share"], 1)
        self.assertEqual(len(report["loss"]["step"]), 3)
        self.assertTrue(report["run"]["command"].startswith(GPT + " train --data"), report["run"]["command"])

    def test_tiles_by_hand(self):
        folder = self.root / "gemm"
        run_well(TILE_GEMM, "--size", 512, "--tile", 256, "--trace", folder)
        report = read_report(folder)
        gemms = [row for row in report["summary"]["per_op"] if row["name"] == "gemm"]
        self.assertEqual([row["tasks"] for row in gemms], [8])
        self.assertAlmostEqual(sum(report["tasks"]["flops"]), 2 * 512**3, delta=8000)
        self.assertEqual(report["run"]["steps"], 0)

    def test_a_full_buffer_ends_the_trace_not_the_run(self):
        folder = self.root / "full"
        done = self.train(folder, steps=150, STARPU_TRACE_BUFFER_SIZE="2")
        self.assertIn("buffer of 2 MB is full", done.stderr)
        self.assertIn("set STARPU_TRACE_BUFFER_SIZE", done.stderr)
        self.assertEqual(len(gpt_runs.metrics(self.root / "full.out")), 151)
        last = min(file["stopped_behind_step"] for file in rank_files(folder))
        read = run_well(TRACE, folder)
        self.assertIn(f"this is the run up to step {last}", read.stderr)
        report = json.loads((folder / "report.json").read_text())
        self.assertLessEqual(set(range(1, last + 1)), set(report["tasks"]["step"]))
        self.assertLessEqual(max(report["tasks"]["step"]), last + 2)  # of the rank that is ahead
        self.assertLess(last, 150)

    # What can be wrong

    def refused(self, folder, *words):
        done = run(TRACE, folder)
        self.assertEqual(done.returncode, FAILURE, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in (str(folder), *words):
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_what_is_no_trace(self):
        self.refused(self.root / "nowhere", "no such folder")
        self.refused(pathlib.Path(f"{self.folder}.out"), "no run.json", "not the folder of a trace")
        done = run(TRACE)
        self.assertEqual((done.returncode, done.stderr), (USAGE, "tegula-trace: FOLDER is required; see --help\n"))

    def test_a_trace_with_a_rank_missing(self):
        folder = self.copy("missing")
        (folder / "rank_1").unlink()
        self.refused(folder, "rank_1: is missing", "2 ranks")

    def test_a_trace_that_was_cut_off(self):
        folder = self.copy("cut")
        recorded = folder / "rank_0"
        recorded.write_bytes(recorded.read_bytes()[:-1000])
        self.refused(folder, "rank_0: has", "cut off")
        folder = self.copy("torn")
        (folder / "run.json").write_text((folder / "run.json").read_text()[:50])
        self.refused(folder, "run.json: is not of a trace, or cut off")

    def test_a_trace_of_another_version(self):
        folder = self.copy("version")
        file = folder / "run.json"
        file.write_text(file.read_text().replace("tegula-trace/1", "tegula-trace/9"))
        self.refused(folder, "tegula-trace/9", "tegula-trace/1")

    def test_a_trace_that_is_damaged(self):
        folder = self.copy("damaged")
        recorded = folder / "rank_0"
        recorded.write_bytes(b"\xff" * recorded.stat().st_size)
        self.refused(folder, "cannot read what StarPU", "damaged")

    def test_a_folder_that_a_trace_cannot_go_to_stops_the_run_before_it_trains(self):
        out = self.root / "never"
        command = ["--steps", 1, "--out", out, "--trace"]
        for folder, message in ((self.folder, "holds a trace already"), ("/proc/nowhere", "cannot create the folder")):
            done = run(*launch(FASHION_MNIST, RANKS, *command, folder))
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.count(message), 1, done.stderr)
            self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
