"""Trains the same steps on 1 to 4 ranks, with 1 and 2 workers each and under three schedulers: with one tiling the
losses are equal in every bit.

    tests/app/same_bits.py PATH/TO/fashion_mnist mlp|cnn [STEPS]
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

program, model = os.path.abspath(sys.argv[1]), sys.argv[2]
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 50
tiles = {"mlp": ["batch=8", "hidden1=200", "hidden2=512"], "cnn": ["batch=8", "map2=40"]}[model]

environment = dict(os.environ)
if os.geteuid() == 0:  # Open MPI asks twice
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def losses(folder, ranks, workers, scheduler):
    command = [program, "--model", model, "--steps", str(steps), "--batch", "32", "--seed", "7", "--out", folder]
    command += ["--workers", str(workers), "--scheduler", scheduler]
    for tile in tiles:
        command += ["--tile", tile]
    if ranks > 1:
        command = ["mpiexec", "--oversubscribe", "-n", str(ranks)] + command
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {run.returncode}\n{run.stdout}{run.stderr}")
    lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").open()]
    found = [line["loss_hex"] for line in lines if "test_loss" not in line]
    assert len(found) == steps, f"{len(found)} losses in {folder}"
    return found


reference, failed = None, 0
with tempfile.TemporaryDirectory(prefix="tegula-bits-") as root:
    for ranks, workers, scheduler in itertools.product((1, 2, 3, 4), (1, 2), ("eager", "lws", "dmdas")):
        found = losses(os.path.join(root, f"{ranks}-{workers}-{scheduler}"), ranks, workers, scheduler)
        reference = reference or found
        differing = [i + 1 for i, (a, b) in enumerate(zip(reference, found)) if a != b]
        failed += bool(differing)
        print(f"{model}: {ranks} ranks, {workers} workers, {scheduler}: "
              f"{'the same bits' if not differing else f'differs from step {differing[0]}'}, ends at {found[-1]}", flush=True)
assert len(set(reference)) > 1, "the loss never changes: nothing was trained"
sys.exit(1 if failed else 0)
