"""Exchanges models and tokenizers with the packages that others use: transformers, safetensors and tokenizers themselves.

    tests/app/transformers_test.py PATH/TO/gpt [NAME OF A TEST...]
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# pylint: disable=wrong-import-position
from peers import common, token_file  # noqa: E402


def run_with_packages():
    """Starts this script again under the Python that has them; skipped, and said so, where they cannot be installed."""
    found = subprocess.run([ROOT / "scripts/python-packages"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        print(f"skipped: scripts/python-packages failed:\n{found.stderr}", file=sys.stderr)
        sys.exit(common.SKIPPED)
    python = found.stdout.strip()
    if sys.executable != python:
        os.execv(python, [python, *sys.argv])


run_with_packages()
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
BATCH, BATCHES = 3, 2
torch.set_num_threads(1)  # other tests run at the same time
TOLERANCE = 1e-5  # of the largest logit
LIMIT_S = 120

GPT2 = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_inner": 96, "n_positions": 16, "vocab_size": 256}
LLAMA = {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 80,
         "max_position_embeddings": 16, "vocab_size": 256, "rms_norm_eps": 1e-6, "rope_theta": 500000.0}


def random_model(config):
    """Larger weights than a training starts with, and no plain ones and zeros, so that each of them shows in the logits."""
    torch.manual_seed(1)
    net = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.normal_(0, 0.15)
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.add_(1)
    return net


class ExchangeTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def gpt(self, *arguments, fails=False):
        """Runs the program; returns what it printed."""
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done.stdout + done.stderr


class ModelTest(ExchangeTest):
    def logits(self, net, ids):
        with torch.no_grad():
            return torch.cat([net(part).logits for part in ids.split(BATCH)])

    def check(self, config, **saving):
        """Their model, our logits; our checkpoint, their logits; and the weights never change by a bit."""
        net, model, run = random_model(config), self.folder / "model", self.folder / "run"
        net.save_pretrained(model, safe_serialization=True, **saving)
        self.gpt("import", "--weights", model, "--out", run)

        rng, context, vocabulary = random.Random(1), config.max_position_embeddings, config.vocab_size
        text = [rng.randrange(vocabulary) for _ in range((BATCH * BATCHES + 1) * context + 1)]
        token_file.write(self.folder / "text.tokens", text, vocabulary)
        self.gpt("evaluate", "--run", run, "--tokens", self.folder / "text.tokens", "--batch", BATCH, "--batches", BATCHES,
                 "--logits", self.folder / "logits.safetensors")
        with safetensors.safe_open(self.folder / "logits.safetensors", "pt") as file:
            found = file.get_tensor("logits")
        ids = torch.tensor(text[:BATCH * BATCHES * context]).reshape(BATCH * BATCHES, context)
        expected = self.logits(net, ids)
        self.assertEqual(found.shape, expected.shape)
        self.assertLessEqual((found - expected).abs().max() / expected.abs().max(), TOLERANCE)

        checkpoint = run / "checkpoints/step-00000000"
        again = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
        self.assertEqual(self.logits(again, ids).numpy().tobytes(), expected.numpy().tobytes())
        ours = safetensors.torch.load_file(checkpoint / "model.safetensors")
        theirs = {}
        for part in model.glob("*.safetensors"):
            theirs |= safetensors.torch.load_file(part)
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in theirs.items():
            self.assertEqual(ours[name].numpy().tobytes(), tensor.numpy().tobytes(), name)

    def test_gpt2(self):
        self.check(transformers.GPT2Config(**GPT2))

    def test_gpt2_in_parts(self):
        self.check(transformers.GPT2Config(**GPT2), max_shard_size="40KB")

    def test_gpt2_with_an_output_layer_of_its_own(self):
        self.check(transformers.GPT2Config(**GPT2, tie_word_embeddings=False))

    def test_llama_with_grouped_queries(self):
        self.check(transformers.LlamaConfig(**LLAMA))

    def test_llama_in_parts(self):
        self.check(transformers.LlamaConfig(**LLAMA), max_shard_size="40KB")

    def test_llama_that_is_tied(self):
        self.check(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))

    def test_settings_that_our_blocks_have_not(self):
        for config, key in ((transformers.GPT2Config(**GPT2, activation_function="relu"), "activation_function"),
                            (transformers.LlamaConfig(**LLAMA, rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling"),
                            (transformers.LlamaConfig(**LLAMA, attention_bias=True), "attention_bias")):
            model = self.folder / key
            random_model(config).save_pretrained(model, safe_serialization=True)
            self.assertIn(f'"{key}" is ', self.gpt("import", "--weights", model, "--out", self.folder / "run", fails=True))


class TokenizerTest(ExchangeTest):
    """Texts that GPT-2's rules take apart in many ways."""

    def setUp(self):
        super().setUp()
        files = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("framework/*/*.cpp"))]
        strange = ("  spaces   and\ttabs\r\nand\u00a0\u2003\u2028others\n\n\n  I'll he'd 'S ' re're DON'T n't\n"
                   "Stra\u00dfe \u4f60\u597d\u4e16\u754c \u0645\u0631\u062d\u0628\u0627 e\u0301e\u0302 \u0967\u0968\u0969 \u00bd\u00b2\u2167 "
                   "\U0001f469\u200d\U0001f680\U0001f1e9\U0001f1ea x\u0000y 3.14159e-10 a1b22c333 __init__ ->*<=>;\n")
        rng = random.Random(1)
        points = [point for point in range(0x20, 0x3000) if not 0xd800 <= point < 0xe000]
        strange += "".join(chr(rng.choice(points)) + rng.choice(["", "", " ", "a", "7"]) for _ in range(20000))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(file.read_text() for file in files) + strange * 2, newline="")

    def check(self, tokenizer, theirs):
        """The same ids from both, for all of the text."""
        self.gpt("prepare", "--text", self.text, "--out", self.folder / "data", "--tokenizer", tokenizer)
        whole = ""
        for part in "train", "validation":
            ids = token_file.read(self.folder / f"data/{part}.tokens")[0].tolist()
            text = theirs.decode(ids, skip_special_tokens=False)
            self.assertEqual(theirs.encode(text).ids, ids)
            whole += text
        self.assertEqual(whole, self.text.read_bytes().decode())

    def learned_by_them(self):
        theirs = tokenizers.ByteLevelBPETokenizer()
        theirs.train([str(self.text)], vocab_size=2000, min_frequency=2, show_progress=False)
        return theirs

    def test_their_tokenizer_json(self):
        theirs = self.learned_by_them()
        theirs.save(str(self.folder / "tokenizer.json"))
        self.check(self.folder / "tokenizer.json", theirs)

    def test_their_vocabulary_and_merges(self):
        theirs = self.learned_by_them()
        (self.folder / "theirs").mkdir()
        theirs.save_model(str(self.folder / "theirs"))
        self.check(self.folder / "theirs", theirs)

    def test_our_tokenizer_json(self):
        self.gpt("tokenizer", "train", "--text", self.text, "--vocabulary", 2000, "--out", self.folder / "ours")
        self.check(self.folder / "ours", tokenizers.Tokenizer.from_file(str(self.folder / "ours/tokenizer.json")))

    def test_our_vocabulary_and_merges(self):
        self.gpt("tokenizer", "train", "--text", self.text, "--vocabulary", 2000, "--out", self.folder / "ours")
        theirs = transformers.GPT2TokenizerFast(str(self.folder / "ours/vocab.json"), str(self.folder / "ours/merges.txt"))
        self.check(self.folder / "ours", theirs.backend_tokenizer)


if __name__ == "__main__":
    unittest.main()
