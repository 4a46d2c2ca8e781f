"""Runs build/apps/gpt as users do, on a small text: what its commands print, write and refuse.

    tests/app/gpt_test.py PATH/TO/gpt [NAME OF A TEST...]
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import gpt_runs
from gpt_runs import ENVIRONMENT, flags

PROGRAM = os.path.abspath(sys.argv.pop(1))
USAGE, FAILURE = 2, 1
STEPS = 60


def crc32c(content):
    """Castagnoli's, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(content):
    """Those of a TFRecord file: length, its checksum, bytes, their checksum."""
    def check(part, expected):
        crc = crc32c(part)
        assert ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == expected, "wrong checksum"

    while content:
        length, length_crc = struct.unpack("<QI", content[:12])
        check(content[:8], length_crc)
        body, (crc,) = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])
        check(body, crc)
        yield body
        content = content[16 + length :]


def fields(content):
    """(number, value) of a protocol buffer."""
    def varint():
        nonlocal content
        value = shift = 0
        while True:
            byte, content = content[0], content[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while content:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, content[:length]
            content = content[length:]


def events(path):
    """(step, tag, value) of an event file."""
    for record in records(path.read_bytes()):
        event = dict(fields(record))
        for _, value in fields(event.get(5, b"")):
            scalar = dict(fields(value))
            yield event.get(2, 0), scalar[1].decode(), struct.unpack("<f", scalar[2])[0]


class GptTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        root = pathlib.Path(cls.temporary.name)
        cls.data = gpt_runs.prepare(PROGRAM, root)
        cls.text = root / "text.txt"
        cls.trained = root / "trained"
        cls.trained_output = gpt_runs.run_well(
            PROGRAM, 1, "train", *cls.options(out=cls.trained, steps=STEPS, lr=0.01, validate_every=25))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def options(cls, **given):
        """Of a small training."""
        shape = gpt_runs.SHAPE | {"data": cls.data} | {name.replace("_", "-"): value for name, value in given.items()}
        return flags({name: value for name, value in shape.items() if value is not None})

    def setUp(self):
        self.folder = pathlib.Path(self.temporary.name) / self.id().rsplit(".", 1)[-1]
        self.folder.mkdir()
        self.out = self.folder / "out"

    def gpt(self, *arguments, ranks=1, code=0, **options):
        done = gpt_runs.run(PROGRAM, ranks, *arguments, errors="backslashreplace", cwd=self.folder, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def train(self, ranks=1, code=0, arguments=(), **options):
        options = self.options(**{"out": self.out, "steps": 2} | options)
        return self.gpt("train", *options, *arguments, ranks=ranks, code=code)

    def expect_error(self, *messages, done):
        """One line says what is wrong; the other lines are the table of ranks."""
        lines = [line for line in done.stderr.splitlines() if line[:2] != "  " and ", scheduler " not in line]
        self.assertEqual(len(lines), 1, done.stderr)
        for message in messages:
            self.assertIn(message, lines[0])
        self.assertNotIn("step 1", done.stdout)

    def refuse(self, *messages, ranks=1, **options):
        """A training that is refused, with nothing written."""
        self.expect_error(*messages, done=self.train(ranks=ranks, code=FAILURE, **options))
        self.assertFalse(self.out.exists())

    def own_data(self):
        """A copy of the token files, to be spoiled."""
        shutil.copytree(self.data, self.folder / "data")
        return self.folder / "data"

    def own_run(self):
        """A copy of the trained model, to be spoiled."""
        shutil.copytree(self.trained, self.out)
        return gpt_runs.checkpoint(self.out)

    def contents(self, folder):
        return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    # The commands.

    def test_help(self):
        text = self.gpt("--help").stdout
        for command in "prepare", "tokenizer", "import", "train", "evaluate", "generate":
            self.assertIn(f"  {command} ", text)
            self.assertIn(f"Usage: gpt {command}", self.gpt(command, "--help").stdout)
        self.assertEqual(self.gpt("train", "--help", ranks=2).stdout.count("--config"), 1)

    def test_wrong_commands_and_options(self):
        for arguments, message in (
            ([], "Usage: gpt COMMAND"),
            (["tarin"], "no command is called 'tarin'"),
            (["train", "--stpes", 3], "unknown option --stpes; did you mean --steps?"),
            (["train", "--batch", 0], "--batch: must be a number >= 1, not '0'"),
            (["train", "--preset", "huge"], "--preset: huge not in {tiny,tiny-llama,gpt2-124m,llama-1b}"),
            (["train", "--dropout", 1], "--dropout"),
            (["prepare", "--text", self.text, "--out", self.out, "--validation", 0], "--validation"),
            (["prepare", "--out", self.out], "--text is required"),
            (["evaluate", "--run", self.trained], "--tokens is required"),
            (["generate"], "--run is required"),
            (["generate", "--run", self.trained, "--temperature", -1], "--temperature"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(message, self.gpt(*arguments, code=USAGE).stderr)
                self.assertFalse(self.out.exists())
        self.assertEqual(self.gpt("tarin", code=USAGE, ranks=2).stderr.count("no command is called"), 1)

    # prepare.

    def test_prepare_bytes(self):
        text = self.gpt("prepare", "--text", self.text, "--out", self.out, "--validation", 0.25).stdout
        total = self.text.stat().st_size
        meta = json.loads((self.out / "meta.json").read_text())
        self.assertEqual((meta["vocabulary"], meta["text_bytes"]), (256, total))
        self.assertEqual(meta["train_tokens"] + meta["validation_tokens"], total)
        self.assertIn(f"{meta['train_tokens']} tokens to train on", text)
        train, validation = ((self.out / name).read_bytes()[32:] for name in ("train.tokens", "validation.tokens"))
        self.assertEqual(bytes((train + validation)[::2]), self.text.read_bytes())

    def test_prepare_bpe_and_use_its_tokenizer_again(self):
        other = self.folder / "other.txt"
        gpt_runs.write_text(other, words=500)
        learned = ["--tokenizer", "bpe", "--vocabulary", 270]
        self.gpt("prepare", "--text", f"{self.text},{other}", "--out", self.out, *learned)
        meta = json.loads((self.out / "meta.json").read_text())
        self.assertEqual(meta["vocabulary"], 270)
        self.assertEqual([source["file"] for source in meta["sources"]], [str(self.text), str(other)])
        self.assertLess(meta["train_tokens"] + meta["validation_tokens"], 0.8 * meta["text_bytes"])
        again, run = self.folder / "again", self.folder / "run"
        self.gpt("prepare", "--text", self.text, "--out", again, "--tokenizer", self.out)
        self.assertEqual((again / "tokenizer.json").read_bytes(), (self.out / "tokenizer.json").read_bytes())
        self.train(data=self.out, out=run)
        held = gpt_runs.tensors(gpt_runs.checkpoint(run) / "model.safetensors")
        self.assertEqual(held["transformer.wte.weight"]["shape"], [270, 16])
        self.assertIn("the word", self.gpt("generate", "--run", run, "--prompt", "the word", "--tokens", 3).stdout)

    def test_tokenizer(self):
        learn = ["tokenizer", "train", "--text", self.text, "--out", self.out, "--vocabulary"]
        done = self.gpt(*learn, 50000, code=FAILURE)
        self.expect_error("cannot train a vocabulary of 50000", done=done)
        self.assertFalse(self.out.exists())
        self.assertIn("270 tokens", self.gpt(*learn, 270).stdout)
        self.gpt("prepare", "--text", self.text, "--out", self.folder / "data", "--tokenizer", self.out)
        self.assertEqual(json.loads((self.folder / "data" / "meta.json").read_text())["vocabulary"], 270)

    def test_prepare_refuses(self):
        for name, content in ("empty", ""), ("one", "x"):
            (self.folder / name).write_text(content)
        for text, more, message in (
            (self.folder / "none", [], "none: no such file; check the path"),
            (self.folder, [], "not a regular file"),
            (self.folder / "empty", [], "empty: is empty; give a file with text"),
            (self.folder / "one", [], "1 bytes of text are too few"),
            (",", [], "no text files were given"),
            (self.text, ["--tokenizer", "bpe", "--vocabulary", 50000], "cannot train a vocabulary of 50000"),
            (self.text, ["--tokenizer", self.folder / "none"], "none: cannot read: No such file or directory"),
        ):
            with self.subTest(text=text, more=more):
                done = self.gpt("prepare", "--text", text, "--out", self.out, *more, code=FAILURE)
                self.expect_error(message, done=done)
                self.assertFalse(self.out.exists())

    # estimate.

    def test_estimate(self):
        cluster = pathlib.Path(__file__).resolve().parents[2] / "apps/clusters/h100.toml"
        flags = "--cluster", cluster, "--preset", "gpt2-124m", "--dtype", "bf16"
        found = json.loads(self.gpt("estimate", *flags, "--ranks", 8, "--mesh", "data=4", "--mesh", "stage=2", "--batch", 32, "--json").stdout)
        self.assertEqual((found["ranks"], found["nodes"], found["fits"]), (8, 1, True))
        self.assertAlmostEqual(found["items_per_s"] * found["step_s"], 32 * 1024, delta=1)
        self.assertTrue(0 < found["share_of_peak"] < 1 and 0 < found["idle"] < 1)
        self.assertIn("tokens/s", self.gpt("estimate", *flags, "--mesh", "data=1").stdout)

    def test_estimate_refuses(self):
        cluster = pathlib.Path(__file__).resolve().parents[2] / "apps/clusters/h100.toml"
        slow = self.folder / "slow.toml"
        slow.write_text(cluster.read_text().replace("bandwidth = 390", "bandwidth = 0"))
        for flags, message in (
            (["--cluster", cluster, "--ranks", 513, "--mesh", "data=513"], "513 ranks are more than the 512"),
            (["--cluster", cluster, "--ranks", 4, "--mesh", "data=2"], "data x tensor x stage are 2 ranks, --ranks 4"),
            (["--cluster", cluster, "--mesh", "depth=2"], "--mesh depth: only data, tensor and stage"),
            (["--cluster", cluster, "--ranks", 3, "--mesh", "data=3"], "--batch 16 does not fall into 3 parts"),
            (["--cluster", slow], "slow.toml:29: a rate of 0"),
            (["--cluster", self.folder / "none"], "none: cannot read: No such file or directory"),
        ):
            with self.subTest(flags=flags):
                self.expect_error(message, done=self.gpt("estimate", *flags, code=FAILURE))

    # train.

    def test_training_learns_and_says_so(self):
        losses, validations = gpt_runs.losses(self.trained)
        self.assertEqual(len(losses), STEPS)
        self.assertEqual([step for step, _ in validations], [25, 50, STEPS])
        self.assertLess(float.fromhex(losses[-1]), float.fromhex(losses[0]) - 1)
        result = json.loads((self.trained / "result.json").read_text())
        self.assertEqual(result["validation_loss"], float.fromhex(validations[-1][1]))
        self.assertIn(f"validation loss {result['validation_loss']:.4f}, results in {self.trained}\n",
                      self.trained_output)
        held = gpt_runs.tensors(gpt_runs.checkpoint(self.trained) / "model.safetensors")
        elements = [tensor["shape"][0] * (tensor["shape"] + [1])[1] for tensor in held.values()]
        self.assertEqual(sum(elements), result["parameters"])

    def test_event_file_and_metrics_agree(self):
        (file,) = self.trained.glob("events.out.tfevents.*")
        expected = []
        for line in gpt_runs.metrics(self.trained):
            for tag in "loss", "lr", "gradient_norm", "tokens_per_s", "validation_loss":
                if tag in line:
                    expected.append((line["step"], tag, struct.unpack("<f", struct.pack("<f", line[tag]))[0]))
        self.assertEqual(list(events(file)), expected)

    def test_dry_run_predicts_and_leaves_nothing(self):
        text = self.train(arguments=["--dry-run", "--tile", "batch=2"]).stdout
        self.assertRegex(text, r"parameters \d+\.\d+ M, \d+\.\d+ Mflop per token")
        self.assertIn("batch 6 in tiles of 2", text)
        self.assertRegex(text, r"Gflop +sent MB +received MB +state MB +peak MB")
        self.assertRegex(text, r"\n +0 +\d+ +0\.\d+ +0\.000 +0\.000 +0\.\d+ +0\.\d+")
        text = self.train(ranks=2, out=None, arguments=["--dry-run", "--tile", "batch=2"]).stdout
        self.assertRegex(text, r"\n +1 +\d+ +0\.\d+ +0\.\d*[1-9]\d* ")  # rank 1 sends something
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_micro_batches_take_less_memory_to_the_same_bits(self):
        def peak_mb(*arguments):
            text = self.train(arguments=["--dry-run", "--tile", "batch=2", *arguments]).stdout
            return float(re.search(r"\n +0 .* ([\d.]+) *$", text, re.MULTILINE)[1])

        self.assertLess(peak_mb("--accumulate", 3), peak_mb())
        together, apart = self.folder / "together", self.folder / "apart"
        self.train(out=together, arguments=["--tile", "batch=2"])
        self.train(out=apart, arguments=["--tile", "batch=2", "--accumulate", 3])
        self.assertEqual(gpt_runs.losses(together), gpt_runs.losses(apart))
        self.assertEqual(*(gpt_runs.states(gpt_runs.checkpoint(out)) for out in (together, apart)))

    def test_bf16_differs_from_f32_by_its_rounding(self):
        losses = []
        for dtype in "f32", "bf16":
            self.train(out=self.folder / dtype, steps=10, lr=0.01, dtype=dtype)
            losses.append([line["loss"] for line in gpt_runs.metrics(self.folder / dtype) if "loss" in line])
        self.assertNotEqual(losses[0], losses[1])
        for exact, rounded in zip(*losses, strict=True):
            self.assertLess(abs(rounded - exact), 0.02 * exact)
        self.assertEqual({entry["dtype"] for entry in
                          gpt_runs.tensors(gpt_runs.checkpoint(self.folder / "bf16") / "model.safetensors").values()}, {"F32"})

    def test_f16_trains_like_f32_behind_a_loss_scale(self):
        def losses(name):
            return [line["loss"] for line in gpt_runs.metrics(self.folder / name) if "loss" in line]

        self.train(out=self.folder / "f32", steps=10, lr=0.01)
        self.train(out=self.folder / "f16", steps=10, lr=0.01, dtype="f16", loss_scale=2**10)
        for exact, rounded in zip(losses("f32"), losses("f16"), strict=True):
            self.assertLess(abs(rounded - exact), 0.005 * exact)
        # From a scale whose gradients overflow, training begins as soon as it has fallen far enough.
        self.train(out=self.folder / "high", steps=20, lr=0.01, dtype="f16", loss_scale=2**24)
        lines = [line for line in gpt_runs.metrics(self.folder / "high") if "loss" in line]
        skipped = [line["loss"] for line in lines if line["gradient_norm"] is None]
        self.assertGreater(len(skipped), 1)
        self.assertLess(lines[-1]["loss_scale"], 2**24)
        self.assertLess(lines[-1]["loss"], 0.98 * skipped[-1])
        # The scale is kept in checkpoints.
        self.train(out=self.folder / "high", steps=21, lr=0.01, dtype="f16", loss_scale=2**24, resume="auto")
        self.assertEqual(gpt_runs.metrics(self.folder / "high")[-2]["loss_scale"], lines[-1]["loss_scale"])

    def test_key_value_heads_follow_heads(self):
        self.refuse("3 query heads cannot share 2 key-value heads evenly", kind="llama", heads=3, key_value_heads=2)
        self.train(heads=4, head_dim=4)

    def test_configuration_can_be_fed_back(self):
        self.gpt("train", "--config", self.trained / "config.toml", "--out", self.out, "--steps", 5)
        self.assertEqual(gpt_runs.losses(self.out)[0][:2], gpt_runs.losses(self.trained)[0][:2])

    def test_missing_data(self):
        data = self.folder / "none"
        for ranks in 1, 2:
            self.refuse(f"{data}/train.tokens: no such file; make it with `gpt prepare --text FILE --out {data}`",
                        data=data, ranks=ranks)

    def test_truncated_tokens(self):
        file = self.own_data() / "train.tokens"
        file.write_bytes(file.read_bytes()[:-1])
        self.refuse(f"{file}: not a valid token file", "prepare the text again", data=file.parent)

    def test_tokens_of_another_vocabulary(self):
        data = self.own_data()
        learned = ["--tokenizer", "bpe", "--vocabulary", 270]
        self.gpt("prepare", "--text", self.text, "--out", self.folder / "bpe", *learned)
        shutil.copy(self.folder / "bpe" / "validation.tokens", data)
        self.refuse("train.tokens have a vocabulary of 256, validation.tokens of 270", data=data)
        shutil.copy(self.folder / "bpe" / "train.tokens", data)
        self.refuse("vocabulary of 270", "the tokenizer one of 256; prepare them again", data=data)
        self.refuse("model.safetensors: 'transformer.wte.weight' has shape (256, 16), the program needs (270, 16)",
                    data=self.folder / "bpe", resume=gpt_runs.checkpoint(self.trained))
        tokens = self.folder / "bpe" / "validation.tokens"
        self.expect_error(f"{tokens}: has a vocabulary of 270, the model one of 256",
                          done=self.gpt("evaluate", "--run", self.trained, "--tokens", tokens, code=FAILURE))

    def test_text_shorter_than_a_context(self):
        (self.folder / "short.txt").write_text("too short to learn anything from")
        data = self.folder / "short"
        self.gpt("prepare", "--text", self.folder / "short.txt", "--out", data)
        self.refuse(f"{data}: the validation text has 4 tokens, fewer than a context of 16", data=data)
        self.refuse(str(data), "28 tokens", data=data, context=64)

    def test_resume_refuses_what_is_no_checkpoint(self):
        self.refuse("nowhere: no such folder", resume="nowhere")
        self.refuse(f"{self.data}: holds no checkpoint; give the folder of a training run", resume=self.data)

    def test_resume_refuses_another_shape(self):
        newest = gpt_runs.checkpoint(self.trained)
        for options, message in (
            ({"hidden": 64}, "'transformer.h.0.mlp.c_fc.weight' has shape (16, 32), the program needs (16, 64)"),
            ({"context": 8}, "'transformer.wpe.weight' has shape (16, 16), the program needs (8, 16)"),
            ({"layers": 3}, "holds no tensor 'transformer.h.2."),
            ({"layers": 1}, "which the program has not: it is from another model"),
            ({"kind": "llama"}, "holds no tensor 'model."),
        ):
            with self.subTest(options=options):
                self.refuse(f"{newest}/model.safetensors: ", message, resume=newest, **options)

    def test_resume_refuses_damaged_files(self):
        newest = self.own_run()
        files = "model.safetensors", "optimizer.safetensors", "state.json"
        whole = {name: (newest / name).read_bytes() for name in files}
        damaged = bytearray(whole["optimizer.safetensors"])
        damaged[-5] ^= 1
        for name, content, message in (
            ("model.safetensors", whole["model.safetensors"][:-1], "not valid safetensors"),
            ("optimizer.safetensors", whole["optimizer.safetensors"][:100], "not valid safetensors"),
            ("optimizer.safetensors", damaged, "the checksum of"),
            ("state.json", whole["state.json"][:50], "not the state of a checkpoint"),
        ):
            with self.subTest(file=name, message=message):
                (newest / name).write_bytes(content)
                before = self.contents(self.out)
                done = self.train(resume="auto", steps=STEPS + 2, code=FAILURE)
                self.expect_error(f"{newest}/{name}: ", message, done=done)
                self.assertEqual(self.contents(self.out), before)
                (newest / name).write_bytes(whole[name])

    def test_resume_takes_the_folder_of_a_run(self):
        self.assertIn(f"at step {STEPS}", self.train(resume=self.trained, steps=STEPS + 1).stdout)

    def test_loss_that_is_not_finite_is_not_saved(self):
        for ranks in 1, 2:
            self.out = self.folder / str(ranks)
            done = self.train(steps=30, lr=1e20, warmup=0, clip=0, save_every=1, keep=0, ranks=ranks, code=FAILURE)
            self.assertRegex(done.stderr, r"the loss of step \d+ is not finite \(-?(nan|inf)\); "
                                          r"the first op with a non-finite output was (?!not found)\S+")
            finite = [line["step"] for line in gpt_runs.metrics(self.out) if line["loss"] is not None]
            saved = [path.name for path in (self.out / "checkpoints").glob("step-*")]
            self.assertEqual(sorted(saved), [f"step-{step:08}" for step in finite])
        done = self.gpt("generate", "--run", self.out, "--tokens", 3, code=FAILURE)
        self.assertIn("the model's logits are not finite", done.stderr)

    def test_full_disk(self):
        def limit_files():  # stands in for a full disk, which takes root to make
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        environment = ENVIRONMENT | {"PMIX_MCA_gds": "hash"}  # Open MPI's other way needs files larger than that
        done = self.gpt("train", *self.options(out=self.out, steps=4, hidden=512), code=FAILURE,
                        env=environment, preexec_fn=limit_files, restore_signals=False)
        self.assertIn("[checkpoint] step 4 was not saved", done.stderr)
        self.assertIn("cannot write: File too large; free some space, or choose another folder", done.stderr)
        self.assertFalse((self.out / "checkpoints" / "latest").exists())
        self.assertFalse((self.out / "result.json").exists())
        # What is left of it is in nobody's way.
        self.train(steps=4, hidden=512, arguments=["--resume", "auto"])
        self.assertEqual(sorted(os.listdir(self.out / "checkpoints")), ["latest", "step-00000004"])

    # evaluate and generate.

    def test_evaluate(self):
        expected = json.loads((self.trained / "result.json").read_text())["validation_loss"]
        arguments = ["evaluate", "--run", self.trained, "--tokens", self.data / "validation.tokens", "--batch", 6]
        for ranks in 1, 2:
            text = self.gpt(*arguments, ranks=ranks).stdout
            loss = float(text.split()[1].rstrip(","))
            self.assertLess(abs(loss - expected), 2e-4)
            self.assertRegex(text, r"^loss \d\.\d{4}, perplexity \d+\.\d{3}\n$")
        self.expect_error("none.tokens: cannot read: No such file or directory",
                          done=self.gpt("evaluate", "--run", self.trained, "--tokens", "none.tokens", code=FAILURE))

    def generate(self, *arguments, ranks=1, run=None, tokens=40, **options):
        given = ["--run", run or self.trained, "--prompt", "the light ", "--tokens", tokens]
        return self.gpt("generate", *given, *arguments, ranks=ranks, **options).stdout

    def test_greedy_text(self):
        text = self.generate("--temperature", 0)
        self.assertTrue(text.startswith("the light "))
        self.assertEqual(text, self.generate("--temperature", 0, "--seed", 2))
        self.assertEqual(text, self.generate("--top-k", 1, "--temperature", 3))
        self.assertEqual(text, self.generate("--top-p", 0, "--temperature", 3))
        self.assertEqual(self.generate("--temperature", 0, tokens=0), "the light \n")
        self.assertTrue(text.startswith(self.generate("--temperature", 0, tokens=20)[:-1]))

    def test_text_depends_on_seed_but_not_on_ranks(self):
        drawn = ["--temperature", 0.9, "--top-k", 20, "--top-p", 0.95]
        for tiles in [], ["--tile", "hidden=12", "--tile", "vocabulary=100", "--tile", "sequence=5"]:
            text = self.generate(*drawn, *tiles)
            for ranks in 2, 3:
                self.assertEqual(self.generate(*drawn, *tiles, ranks=ranks), text)
        self.assertNotEqual(self.generate(*drawn, "--seed", 2), text)

    def test_prompt_longer_than_the_context(self):
        prompt = "in the beginning was the word and the word was " * 2
        text = self.gpt("generate", "--run", self.trained, "--prompt", prompt, "--tokens", 5).stdout
        self.assertTrue(text.startswith(prompt))
        self.assertGreater(len(text), len(prompt) + 5)

    def test_all_ways_to_name_a_model(self):
        newest = gpt_runs.checkpoint(self.trained)
        expected = self.generate(tokens=5)
        for run in newest, f"{newest}/", os.path.relpath(newest, self.folder), f"{self.trained}/":
            self.assertEqual(self.generate(tokens=5, run=run), expected)
        arguments = ["generate", "--run", ".", "--prompt", "the light ", "--tokens", "5"]
        done = subprocess.run([PROGRAM, *arguments], cwd=newest, env=ENVIRONMENT, capture_output=True, check=True,
                              timeout=gpt_runs.LIMIT_S)
        self.assertEqual(done.stdout.decode(errors="backslashreplace"), expected)

    def test_generate_refuses(self):
        newest = self.own_run()

        def refuse(message, *arguments, run=self.out, ranks=1):
            self.expect_error(message, done=self.gpt("generate", "--run", run, *arguments, ranks=ranks, code=FAILURE))

        refuse("--prompt is empty", "--prompt", "")
        for ranks in 1, 2:
            refuse("none: no such folder", run="none", ranks=ranks)
        refuse("holds no checkpoint", run=self.data)
        weights = bytearray((newest / "model.safetensors").read_bytes())
        weights[-5] ^= 1
        (newest / "model.safetensors").write_bytes(weights)
        refuse(f"{newest}/model.safetensors: the checksum of")
        (newest / "model.safetensors").write_bytes(weights[:-1])
        refuse(f"{newest}/model.safetensors: not valid safetensors")
        shutil.rmtree(self.out / "checkpoints")
        refuse("holds no checkpoint")


if __name__ == "__main__":
    unittest.main()
