"""What the tests of build/apps/gpt share: a small text, a small model, runs of it and what they leave behind."""

import json
import os
import pathlib
import random
import struct
import subprocess

LIMIT_S = 240

ENVIRONMENT = dict(os.environ)
if os.geteuid() == 0:  # Open MPI asks twice
    ENVIRONMENT.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

# With the tiles below, 3 of the batch and 4 of the sequence, of which the last has one token.
SHAPE = {"layers": 2, "heads": 2, "head-dim": 8, "hidden": 32, "context": 16, "batch": 6, "warmup": 2, "workers": 1}
KINDS = {"gpt2": {"kind": "gpt2", "key-value-heads": 2}, "llama": {"kind": "llama", "key-value-heads": 1}}
TILES = ["--tile", "batch=2", "--tile", "sequence=5"]


def flags(options):
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def launch(program, ranks, *arguments):
    """The command line; one rank needs no launcher."""
    launcher = [] if ranks == 1 else ["mpiexec", "--oversubscribe", "-n", str(ranks)]
    return [*launcher, str(program), *map(str, arguments)]


def run(program, ranks, *arguments, **options):
    options = {"env": ENVIRONMENT, "timeout": LIMIT_S} | options
    return subprocess.run(launch(program, ranks, *arguments), capture_output=True, text=True, **options)


def run_well(program, ranks, *arguments):
    done = run(program, ranks, *arguments)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, done.args))}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_text(path, words=2000):
    chance = random.Random(1)
    vocabulary = "in the beginning was a word and light shone on dark water".split()
    path.write_text(" ".join(chance.choice(vocabulary) for _ in range(words)))


def prepare(program, folder):
    """A small text as token files of bytes in folder/data."""
    write_text(folder / "text.txt")
    run_well(program, 1, "prepare", "--text", folder / "text.txt", "--out", folder / "data")
    return folder / "data"


def metrics(out):
    """The lines of metrics.jsonl; a torn one is an error."""
    text = (out / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n"), f"{out}: torn: {text[-100:]!r}"
    return [json.loads(line) for line in text.splitlines()]


def losses(out):
    """loss_hex of each step, which must be there once each and in order, and those of the validations."""
    lines = metrics(out)
    steps = [line for line in lines if "loss_hex" in line]
    numbers = [line["step"] for line in steps]
    assert numbers == list(range(1, len(numbers) + 1)), f"{out}: steps in metrics.jsonl are {numbers}"
    validations = [(line["step"], line["validation_loss_hex"]) for line in lines if "validation_loss_hex" in line]
    assert len(dict(validations)) == len(validations), f"{out}: validated twice: {validations}"
    return [line["loss_hex"] for line in steps], validations


def checkpoint(out):
    """The folder of the newest checkpoint."""
    return out / "checkpoints" / (out / "checkpoints" / "latest").read_text().strip()


def states(folder):
    """The bytes of a checkpoint's weights and moments, by file."""
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def tensors(path):
    """The header of a .safetensors file without its metadata."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    header.pop("__metadata__", None)
    return header
