"""Exchanges models with Hugging Face's own libraries: transformers makes and saves one, we read it; we save it, transformers
reads that. Logits agree and weights are the same bits on every way.

    tests/app/transformers_test.py PATH/TO/gpt [NAME OF A TEST...]
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

# pylint: disable=wrong-import-position
from peers import common, token_file  # noqa: E402

common.run_with_packages()
os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
WINDOWS, CONTEXT, VOCABULARY = 4, 16, 256
TOLERANCE = 1e-5  # of the largest logit
LIMIT_S = 120
torch.set_num_threads(1)  # other tests run at the same time
transformers.logging.set_verbosity_error()

GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": CONTEXT, "vocab_size": VOCABULARY}
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48,
         "intermediate_size": 72, "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}


def random_model(config):
    """Larger weights than a training starts with, and no plain ones and zeros, so that each of them shows in the logits."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
            if parameter.dim() == 1:
                parameter.add_(1)
    return model


def read_files(folder):
    """All tensors of a folder's model, through safetensors' own reader, and its files' names."""
    tensors, files = {}, sorted(folder.glob("model*.safetensors"))
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}, opened.metadata()
            for name in opened.keys():
                assert name not in tensors
                tensors[name] = opened.get_tensor(name)
    return tensors, [file.name for file in files]


class TransformersTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.theirs, self.run = self.folder / "theirs", self.folder / "run"

    def gpt(self, *arguments, code=0):
        """Runs the program; returns what it printed."""
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def expect_same_bits(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertEqual(found[name].numpy().tobytes(), tensor.numpy().tobytes(), name)

    def logits(self, run):
        """Ours, and the tokens they are of."""
        rng = random.Random(1)
        ids = [rng.randrange(VOCABULARY) for _ in range((WINDOWS + 1) * CONTEXT + 1)]
        token_file.write(self.folder / "text.tokens", ids, VOCABULARY)
        self.gpt("evaluate", "--run", run, "--tokens", self.folder / "text.tokens", "--batch", WINDOWS, "--batches", 1,
                 "--logits", self.folder / "logits.safetensors")
        return load_file(self.folder / "logits.safetensors")["logits"], torch.tensor(ids[:WINDOWS * CONTEXT]).view(
            WINDOWS, CONTEXT)

    def expect_logits(self, model, found, tokens):
        with torch.no_grad():
            expected = model(tokens).logits
        self.assertEqual(found.shape, expected.shape)
        self.assertLessEqual((found - expected).abs().max() / expected.abs().max(), TOLERANCE)

    def exchange(self, config, **saving):
        model = random_model(config)
        model.save_pretrained(self.theirs, safe_serialization=True, **saving)
        self.gpt("import", "--weights", self.theirs, "--out", self.run)
        found, tokens = self.logits(self.run)
        self.expect_logits(model, found, tokens)

        checkpoint = self.run / "checkpoints/step-00000000"
        given, files = read_files(self.theirs)
        ours, _ = read_files(checkpoint)
        self.expect_same_bits(ours, given)

        again, report = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
        self.assertFalse(any(report.values()), report)
        self.assertIs(type(again), type(model))
        self.expect_logits(again.eval(), found, tokens)
        again.save_pretrained(self.folder / "again", safe_serialization=True)
        self.expect_same_bits(read_files(self.folder / "again")[0], given)
        return files

    def test_gpt2(self):
        self.exchange(transformers.GPT2Config(**GPT2))

    def test_gpt2_of_another_shape(self):
        self.exchange(transformers.GPT2Config(**GPT2 | {"n_layer": 3, "n_head": 3, "n_embd": 39, "n_inner": 50,
                                                        "layer_norm_epsilon": 1e-3}))

    def test_gpt2_with_an_output_layer_of_its_own(self):
        self.exchange(transformers.GPT2Config(**GPT2, tie_word_embeddings=False))

    def test_gpt2_in_parts(self):
        files = self.exchange(transformers.GPT2Config(**GPT2), max_shard_size="30KB")
        self.assertGreater(len(files), 2)

    def test_gpt2_without_its_head(self):
        """GPT2Model's names have no prefix."""
        model = random_model(transformers.GPT2Config(**GPT2))
        model.transformer.save_pretrained(self.theirs, safe_serialization=True)
        self.gpt("import", "--weights", self.theirs, "--out", self.run)
        self.expect_logits(model, *self.logits(self.run))

    def test_llama(self):
        self.exchange(transformers.LlamaConfig(**LLAMA))

    def test_llama_of_another_shape(self):
        self.exchange(transformers.LlamaConfig(**LLAMA | {
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 24,
            "intermediate_size": 41, "rope_theta": 500000.0, "rms_norm_eps": 1e-3}))

    def test_llama_with_one_key_head(self):
        self.exchange(transformers.LlamaConfig(**LLAMA | {"num_key_value_heads": 1}))

    def test_llama_as_transformers_5_says_it(self):
        """Its config.json has the base of the rotary embedding in a place of its own."""
        model = random_model(transformers.LlamaConfig(**LLAMA, rope_theta=500000.0))
        model.save_pretrained(self.theirs, safe_serialization=True)
        config = json.loads((self.theirs / "config.json").read_text())
        del config["rope_theta"]
        config["rope_parameters"] = {"rope_theta": 500000.0, "rope_type": "default"}
        (self.theirs / "config.json").write_text(json.dumps(config))
        self.gpt("import", "--weights", self.theirs, "--out", self.run)
        self.expect_logits(model, *self.logits(self.run))

    def test_llama_that_is_tied(self):
        self.exchange(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))

    def test_llama_in_parts(self):
        files = self.exchange(transformers.LlamaConfig(**LLAMA), max_shard_size="30KB")
        self.assertGreater(len(files), 2)

    def test_weights_in_half_precision(self):
        """As Llama is published; f32 has all their numbers."""
        for dtype in torch.bfloat16, torch.float16:
            theirs, run = self.folder / f"theirs-{dtype}", self.folder / f"run-{dtype}"
            model = random_model(transformers.LlamaConfig(**LLAMA)).to(dtype)
            model.save_pretrained(theirs, safe_serialization=True)
            self.gpt("import", "--weights", theirs, "--out", run)
            # Not model.float(): its table of rotary frequencies has been rounded with the weights.
            widened = transformers.AutoModelForCausalLM.from_pretrained(theirs, torch_dtype=torch.float32)
            self.expect_logits(widened.eval(), *self.logits(run))
            given = {name: tensor.float() for name, tensor in read_files(theirs)[0].items()}
            self.expect_same_bits(read_files(run / "checkpoints/step-00000000")[0], given)

    def test_a_trained_run(self):
        """What a training leaves is read by the programs it is for: weights, moments and TensorBoard's events."""
        text = self.folder / "text.txt"
        text.write_text("In the beginning God created the heaven and the earth. " * 60)
        self.gpt("prepare", "--text", text, "--out", self.folder / "tokens")
        for kind, key_value_heads in ("gpt2", 4), ("llama", 2):
            run = self.folder / kind
            self.gpt("train", "--data", self.folder / "tokens", "--kind", kind, "--layers", 2, "--heads", 4,
                     "--key-value-heads", key_value_heads, "--head-dim", 8, "--hidden", 64, "--context", CONTEXT, "--batch",
                     2, "--steps", 3, "--validate-every", 3, "--dropout", 0.1, "--out", run)
            checkpoint = run / "checkpoints/step-00000003"
            model, report = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
            self.assertFalse(any(report.values()), report)
            self.expect_logits(model.eval(), *self.logits(run))
            with safetensors.safe_open(checkpoint / "optimizer.safetensors", framework="pt") as moments:
                self.assertGreater(len(list(moments.keys())), 0)

            (events,) = run.glob("events.out.tfevents.*")
            found = {(event.step, value.tag): value.tensor.float_val[0] for event in EventFileLoader(str(events)).Load()
                     for value in event.summary.value}
            for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
                for tag in "loss", "validation_loss", "gradient_norm":
                    if tag in line:
                        self.assertEqual(found[line["step"], tag], torch.tensor(line[tag]).item(), (line, tag))

    def test_models_that_compute_otherwise_are_refused(self):
        """Each of them would load, and give other logits."""
        refused = [
            (transformers.GPT2Config(**GPT2, activation_function="relu"), '"activation_function" is "relu"'),
            (transformers.GPT2Config(**GPT2, scale_attn_weights=False), '"scale_attn_weights" is false'),
            (transformers.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
             '"scale_attn_by_inverse_layer_idx" is true'),
            (transformers.LlamaConfig(**LLAMA, hidden_act="gelu"), '"hidden_act" is "gelu"'),
            (transformers.LlamaConfig(**LLAMA, rope_scaling={"type": "linear", "factor": 2.0}), '"rope_scaling" is {'),
            (transformers.LlamaConfig(**LLAMA, attention_bias=True), '"attention_bias" is true'),
            (transformers.LlamaConfig(**LLAMA, sliding_window=8), '"sliding_window" is 8'),
            (transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "yarn"}), 'the rope_type "yarn"'),
            (transformers.LlamaConfig(**LLAMA, rope_theta="many"), '"rope_theta" is a string instead of a number'),
            (transformers.LlamaConfig(**LLAMA, quantization_config={"bits": 4}), '"quantization_config" is {'),
            (transformers.MistralConfig(**LLAMA), '"model_type" is "mistral"; gpt2 and llama are supported'),
        ]
        for config, message in refused:
            with self.subTest(message):
                # A quantized model cannot be saved here; its config can be, and is what is read first.
                config.save_pretrained(self.theirs)
                text = self.gpt("import", "--weights", self.theirs, "--out", self.run, code=1)
                self.assertIn(f"{self.theirs}/config.json: ", text)
                self.assertIn(message, text)
                self.assertFalse(self.run.exists())


if __name__ == "__main__":
    unittest.main()
