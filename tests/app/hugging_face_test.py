"""Imports GPT-2 and Llama models as Hugging Face's library stores them: the weights arrive bit by bit, and the logits are
those that PyTorch computes.

    tests/app/hugging_face_test.py PATH/TO/gpt [NAME OF A TEST...]
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

# pylint: disable=wrong-import-position
from peers import common, token_file  # noqa: E402

common.run_with_torch()

import torch  # noqa: E402
from peers import torch_gpt, torch_side  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
BATCH, BATCHES = 3, 2
torch.set_num_threads(1)  # other tests run at the same time
TOLERANCE = 1e-5  # of the largest logit
LIMIT_S = 120

GPT2 = {"kind": "gpt2", "layers": 3, "heads": 4, "key_value_heads": 4, "head_dim": 8, "hidden": 96, "context": 16,
        "vocabulary": 256}
LLAMA = {"kind": "llama", "layers": 3, "heads": 6, "key_value_heads": 2, "head_dim": 8, "hidden": 80, "context": 16,
         "vocabulary": 256, "epsilon": 1e-6, "rotary_base": 500000.0, "tied": False}


def random_model(shape):
    """Larger weights than a training starts with, and no plain ones and zeros, so that each of them shows in the logits."""
    torch.manual_seed(1)
    net = torch_gpt.LanguageModel(shape)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.normal_(0, 0.15)
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.add_(1)
    return net


def store_in_one_file(folder, tensors):
    torch_side.write_safetensors(folder / "model.safetensors", tensors)


def store_in_parts(folder, tensors):
    """As models of many gigabytes are."""
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in parts.items():
        torch_side.write_safetensors(folder / file, {name: tensors[name] for name in inside})
    index = {"metadata": {"total_size": sum(4 * tensor.numel() for tensor in tensors.values())},
             "weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def store_as_first_published(folder, tensors):
    """As openai-community/gpt2 has them: no prefix, and each block's causal mask."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    context = len(bare["wpe.weight"])
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, context, context).tril() for i in range(GPT2["layers"])}
    torch_side.write_safetensors(folder / "model.safetensors", bare | masks)


class HuggingFaceTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def gpt(self, *arguments):
        """Runs the program; returns what it printed."""
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def check(self, shape, config=None, store=store_in_one_file, folder=True):
        """Stores a model as Hugging Face's save_pretrained() does, imports and judges it."""
        net, model, run = random_model(shape), self.folder / "model", self.folder / "run"
        model.mkdir()
        store(model, dict(net.named_parameters()))
        (model / "config.json").write_text(json.dumps(config or shape.hugging_face()))
        self.gpt("import", "--weights", model if folder else model / "model.safetensors", "--out", run)

        ours = torch_side.read_safetensors(run / "checkpoints/step-00000000/model.safetensors")
        self.assertEqual(ours.keys(), dict(net.named_parameters()).keys())
        for name, parameter in net.named_parameters():
            self.assertEqual(ours[name].shape, parameter.shape, name)
            self.assertEqual(ours[name].numpy().tobytes(), parameter.detach().numpy().tobytes(), name)

        rng = random.Random(1)
        ids = [rng.randrange(shape.vocabulary) for _ in range((BATCH * BATCHES + 1) * shape.context + 1)]
        token_file.write(self.folder / "text.tokens", ids, shape.vocabulary)
        text = self.gpt("evaluate", "--run", run, "--tokens", self.folder / "text.tokens", "--batch", BATCH, "--batches",
                        BATCHES, "--logits", self.folder / "logits.safetensors")
        inputs, targets = torch_gpt.windows(torch.tensor(ids), torch.arange(BATCH * BATCHES), shape.context)
        with torch.no_grad():
            expected, loss = net(inputs), torch_gpt.mean_loss(net, inputs, targets).item()
        found = torch_side.read_safetensors(self.folder / "logits.safetensors")["logits"]
        self.assertEqual(found.shape, expected.shape)
        self.assertLessEqual((found - expected).abs().max() / expected.abs().max(), TOLERANCE)
        self.assertAlmostEqual(float(re.search(r"loss ([\d.]+)", text)[1]), loss, delta=1e-3)

    def test_gpt2(self):
        self.check(torch_gpt.Shape(**GPT2))

    def test_gpt2_as_its_own_config_says_it(self):
        """GPT-2's config.json leaves out what has its default: n_inner is 4 n_embd."""
        shape = torch_gpt.Shape(**GPT2 | {"hidden": 128})
        config = shape.hugging_face()
        for key in "n_inner", "tie_word_embeddings", "torch_dtype":
            del config[key]
        self.check(shape, config)

    def test_gpt2_with_an_output_layer_of_its_own(self):
        self.check(torch_gpt.Shape(**GPT2 | {"tied": False}))

    def test_gpt2_as_first_published(self):
        self.check(torch_gpt.Shape(**GPT2), store=store_as_first_published)

    def test_weights_in_parts(self):
        self.check(torch_gpt.Shape(**LLAMA), store=store_in_parts)

    def test_llama_with_grouped_queries(self):
        self.check(torch_gpt.Shape(**LLAMA), folder=False)

    def test_llama_that_is_tied(self):
        """As Llama 3.2 1B is; without head_dim, which older files do not have."""
        shape = torch_gpt.Shape(**LLAMA | {"tied": True})
        config = shape.hugging_face()
        del config["head_dim"]
        self.check(shape, config)

    def test_llama_without_grouped_queries(self):
        """Files older than grouped queries do not say num_key_value_heads."""
        shape = torch_gpt.Shape(**LLAMA | {"key_value_heads": LLAMA["heads"]})
        config = shape.hugging_face()
        del config["num_key_value_heads"]
        self.check(shape, config)


if __name__ == "__main__":
    unittest.main()
