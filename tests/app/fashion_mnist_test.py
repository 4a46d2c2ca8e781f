"""Runs build/apps/fashion_mnist as users do, on a small data set: results, messages and exit codes.

    tests/app/fashion_mnist_test.py PATH/TO/fashion_mnist [NAME OF A TEST...]
"""

import gzip
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
TRAIN, TEST, BATCH = 300, 100, 64
USAGE, FAILURE = 2, 1
LIMIT_S = 120

ENVIRONMENT = dict(os.environ)
if os.geteuid() == 0:  # Open MPI asks twice
    ENVIRONMENT.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def idx(extents, values):
    return bytes([0, 0, 8, len(extents)]) + struct.pack(f">{len(extents)}I", *extents) + bytes(values)


def make_data(folder):
    """Images whose class is the row that is bright, so that a few steps learn something."""
    rng = random.Random(1)
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        labels = [rng.randrange(10) for _ in range(count)]
        pixels = bytearray()
        for label in labels:
            image = bytearray(rng.randrange(64) for _ in range(784))
            image[56 * label : 56 * label + 56] = bytes([255]) * 56
            pixels += image
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx([count, 28, 28], pixels))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx([count], labels)))


class FashionMnistTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        cls.good_data = pathlib.Path(cls.temporary.name) / "data"
        cls.good_data.mkdir()
        make_data(cls.good_data)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def setUp(self):
        self.folder = pathlib.Path(self.temporary.name) / self.id().rsplit(".", 1)[-1]
        self.folder.mkdir()
        self.out = self.folder / "out"
        self.data = self.good_data

    def command(self, *arguments, ranks=1):
        launcher = [] if ranks == 1 else ["mpiexec", "--oversubscribe", "-n", str(ranks)]
        common = ["--data", self.data, "--out", self.out, "--batch", BATCH]
        given = [str(a) for a in arguments]
        defaults = [str(x) for pair in zip(common[::2], common[1::2]) if pair[0] not in given for x in pair]
        return [*launcher, PROGRAM, *defaults, *given]

    def run_app(self, *arguments, ranks=1, code=0, **options):
        """Runs the program; checks the exit code; returns what it printed."""
        options = {"env": ENVIRONMENT} | options
        done = subprocess.run(self.command(*arguments, ranks=ranks), capture_output=True, text=True,
                              timeout=LIMIT_S, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def own_data(self):
        """A copy of the data set, to be spoiled."""
        self.data = self.folder / "data"
        shutil.copytree(self.good_data, self.data)
        return self.data

    def metrics(self):
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    # What a run prints and leaves behind.

    def test_results(self):
        for model in "mlp", "cnn":
            self.out = self.folder / model
            text = self.run_app("--model", model, "--epochs", 2, "--lr", 0.02)
            self.assertIn(f"results in {self.out}", text)
            epoch_steps = -(-TRAIN // BATCH)  # the last, smaller batch is not dropped
            steps = [line for line in self.metrics() if "test_loss" not in line]
            epochs = [line for line in self.metrics() if "test_loss" in line]
            self.assertEqual([line["step"] for line in steps], list(range(1, 2 * epoch_steps + 1)))
            self.assertEqual([line["epoch"] for line in epochs], [1, 2])
            for line in steps:
                self.assertEqual(float.fromhex(line["loss_hex"]), line["loss"])
                self.assertGreater(line["images_per_s"], 0)
            self.assertLess(epochs[1]["loss"], epochs[0]["loss"])

            result = json.loads((self.out / "result.json").read_text())
            self.assertEqual(result["test_accuracy"], epochs[-1]["test_accuracy"])
            self.assertEqual(sum(map(sum, result["confusion"])), TEST)
            right = sum(result["confusion"][i][i] for i in range(10))
            self.assertAlmostEqual(right / TEST, result["test_accuracy"])
            self.assertEqual(len(result["accuracy_per_class"]), 10)

            weights = (self.out / "model.safetensors").read_bytes()
            header = json.loads(weights[8 : 8 + struct.unpack("<Q", weights[:8])[0]])
            self.assertEqual(header["linear2.bias"]["dtype"], "F32")

    def test_no_steps_keeps_initial_weights(self):
        self.run_app("--steps", 0)
        first = (self.out / "model.safetensors").read_bytes()
        self.run_app("--steps", 0, "--seed", 2)
        self.assertNotEqual(first, (self.out / "model.safetensors").read_bytes())
        self.assertEqual(self.metrics(), [])

    def test_configuration_is_saved_and_can_be_fed_back(self):
        text = self.run_app("--steps", 3, "--tile", "batch=32", "--tile", "hidden1=256", "--optimizer", "adamw",
                            "--lr", 0.001)
        saved = (self.out / "config.toml").read_text()
        self.assertIn(saved.strip(), text)
        self.assertEqual(tomllib.loads(saved)["tile"], {"batch": 32, "hidden1": 256})
        losses = [line["loss_hex"] for line in self.metrics()]
        again = self.folder / "again"
        subprocess.run([PROGRAM, "--config", self.out / "config.toml", "--out", again], check=True,
                       capture_output=True, timeout=LIMIT_S)
        self.out = again
        self.assertEqual([line["loss_hex"] for line in self.metrics()], losses)

    def test_flags_override_the_configuration_file(self):
        file = self.folder / "run.toml"
        file.write_text("steps = 5\nmodel = 'cnn'\n[tile]\nbatch = 16\n")
        self.run_app("--config", file, "--steps", 1, "--model", "mlp")
        config = tomllib.loads((self.out / "config.toml").read_text())
        self.assertEqual((config["steps"], config["model"], config["tile"]), (1, "mlp", {"batch": 16}))

    def test_plain_lines_in_a_pipe_and_one_line_on_a_terminal(self):
        self.assertNotIn("\r", self.run_app("--steps", 2))
        terminal, end = os.openpty()
        subprocess.run(self.command("--steps", 2), stdout=end, stderr=subprocess.DEVNULL, check=True,
                       timeout=LIMIT_S, env=ENVIRONMENT)
        os.close(end)
        text = os.read(terminal, 1 << 16).decode()
        os.close(terminal)
        self.assertIn("\repoch 1  step 2/2  loss ", text)

    def test_only_rank_0_prints_and_writes(self):
        text = self.run_app("--steps", 2, "--tile", "batch=16", ranks=2)
        self.assertEqual(text.count("results in"), 1)
        self.assertEqual(len([line for line in self.metrics() if "test_loss" not in line]), 2)

    def test_plan_is_printed(self):
        self.assertIn("per step, predicted", self.run_app("--steps", 1, "--print-plan"))

    def test_batch_and_tile_beyond_the_axis_mean_one(self):
        self.run_app("--steps", 1, "--batch", 10 * TRAIN, "--tile", "batch=1000000")

    def test_signals_end_with_everything_written(self):
        for number in signal.SIGINT, signal.SIGTERM:
            self.out = self.folder / number.name
            with subprocess.Popen(self.command("--epochs", 100000), stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True) as process:
                while not (self.out / "metrics.jsonl").exists() or not self.metrics():
                    self.assertIsNone(process.poll())
                    time.sleep(0.05)
                process.send_signal(number)
                text, _ = process.communicate(timeout=LIMIT_S)
            self.assertEqual(process.returncode, 128 + number)
            self.assertIn("results in", text)
            self.assertTrue((self.out / "result.json").exists())
            self.assertTrue((self.out / "model.safetensors").exists())

    # Bad options.

    def test_wrong_options(self):
        for arguments, message in (
            (["--batch", 0], "--batch: must be a number >= 1, not '0'"),
            (["--tile", "batch=0"], "--tile: 'batch=0' is not NAME=N with N >= 1"),
            (["--tile", "batch"], "--tile: 'batch' is not NAME=N with N >= 1"),
            (["--bacth", 4], "unknown option --bacth; did you mean --batch?"),
            (["--model", "rnn"], "--model: rnn not in {mlp,cnn}"),
            (["--epochs", "many"], "--epochs"),
            (["extra"], "unexpected argument 'extra'"),
            (["--config", "/nowhere.toml"], "/nowhere.toml: cannot read: No such file or directory"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(message, self.run_app(*arguments, code=USAGE))

    def test_wrong_configuration_file(self):
        file = self.folder / "run.toml"
        file.write_text("steps = 1\nbacth = 4\n")
        text = self.run_app("--config", file, code=USAGE)
        self.assertIn(f"{file}:2: unknown key 'bacth'; did you mean 'batch'?", text)

    def test_wrong_options_are_explained_once(self):
        self.assertEqual(self.run_app("--batch", 0, ranks=2, code=USAGE).count("must be a number"), 1)

    def test_help(self):
        self.assertIn("--tile", self.run_app("--help"))

    def test_unknown_axis(self):
        text = self.run_app("--tile", "bacth=4", code=FAILURE)
        self.assertIn("--tile bacth=4: no such axis; the axes are batch", text)

    def test_unknown_scheduler(self):
        self.assertIn("fastest", self.run_app("--scheduler", "fastest", code=FAILURE))

    def test_no_worker_left(self):
        self.assertIn("no CPU worker and no GPU is left", self.run_app("--workers", 0, code=FAILURE))

    def test_mesh_that_does_not_fit_the_ranks(self):
        self.assertIn("mesh", self.run_app("--mesh", "data=2", code=FAILURE))
        self.assertIn("mesh", self.run_app("--mesh", "data=3", ranks=2, code=FAILURE))

    # Bad data.

    def expect_data_error(self, *messages):
        text = self.run_app("--steps", 1, code=FAILURE)
        for message in messages:
            self.assertIn(message, text)

    def test_missing_data(self):
        self.data = self.folder / "nothing"
        self.expect_data_error(f"{self.data}/train-images-idx3-ubyte: no such file", "dataset-fashion-mnist", "--data")

    def test_missing_data_ends_all_ranks(self):
        self.assertIn("no such file", self.run_app("--data", self.folder / "nothing", ranks=2, code=FAILURE))

    def test_truncated_file(self):
        file = self.own_data() / "train-images-idx3-ubyte"
        file.write_bytes(file.read_bytes()[:-1])
        self.expect_data_error(f"{file}: truncated", "promises 235200 bytes", "235199")

    def test_truncated_gzip(self):
        file = self.own_data() / "t10k-labels-idx1-ubyte.gz"
        file.write_bytes(file.read_bytes()[:-4])
        self.expect_data_error(f"{file}: truncated", "gzip")

    def test_corrupt_gzip(self):
        file = self.own_data() / "train-labels-idx1-ubyte.gz"
        content = bytearray(file.read_bytes())
        content[-6] ^= 1
        file.write_bytes(content)
        self.expect_data_error(f"{file}: corrupt gzip data")

    def test_file_that_is_neither_gzip_nor_idx(self):
        file = self.own_data() / "train-labels-idx1-ubyte.gz"
        file.write_bytes(b"<html>not found</html>")
        self.expect_data_error(f"{file}: wrong magic number", "3c 68 74 6d", "00 00 08 01")

    def test_trailing_bytes(self):
        file = self.own_data() / "train-images-idx3-ubyte"
        file.write_bytes(file.read_bytes() + b"x")
        self.expect_data_error(f"{file}: trailing bytes")

    def test_counts_that_differ(self):
        file = self.own_data() / "train-labels-idx1-ubyte.gz"
        file.write_bytes(gzip.compress(idx([TRAIN - 1], [0] * (TRAIN - 1))))
        self.expect_data_error(f"{TRAIN} images but {TRAIN - 1} labels")

    def test_label_out_of_range(self):
        file = self.own_data() / "train-labels-idx1-ubyte.gz"
        file.write_bytes(gzip.compress(idx([TRAIN], [0] * (TRAIN - 1) + [10])))
        self.expect_data_error(f"{file}: label 10 of image {TRAIN - 1} is out of range: expected 0 to 9")

    # Bad luck.

    def test_loss_that_is_not_finite(self):
        for ranks in 1, 2:
            text = self.run_app("--lr", 1e30, "--epochs", 2, "--tile", "batch=16", ranks=ranks, code=FAILURE)
            self.assertRegex(text, r"the loss of step \d+ is not finite \(-?(nan|inf)\); the first op with a "
                                   r"non-finite output was (?!not found)\S+")

    def test_folder_that_cannot_be_written(self):
        (self.folder / "file").write_text("")
        text = self.run_app("--out", self.folder / "file" / "out", code=FAILURE)
        self.assertIn("part of the path is a file where a folder is needed", text)

    def test_full_disk_for_metrics(self):
        self.out.mkdir()
        (self.out / "metrics.jsonl").symlink_to("/dev/full")
        text = self.run_app("--steps", 2, code=FAILURE)
        self.assertIn(f"{self.out}/metrics.jsonl: cannot write: No space left on device; free some space", text)

    def test_full_disk_for_weights(self):
        def limit_files():  # stands in for a full disk, which takes root to make
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        environment = ENVIRONMENT | {"PMIX_MCA_gds": "hash"}  # Open MPI's other way needs files larger than that
        text = self.run_app("--steps", 1, code=FAILURE, preexec_fn=limit_files, restore_signals=False, env=environment)
        self.assertIn(f"{self.out}/model.safetensors", text)
        self.assertIn("cannot write: File too large; free some space", text)
        self.assertEqual([f.name for f in self.out.iterdir() if f.name.startswith("model")], [])


if __name__ == "__main__":
    unittest.main()
