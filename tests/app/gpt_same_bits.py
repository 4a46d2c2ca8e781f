"""Trains the same language model on 1 to 4 ranks, with 1 and 2 workers each and under three schedulers: with one tiling
of batch and sequence, losses and the checkpoint at the end are equal in every bit, dropout included.

    tests/app/gpt_same_bits.py PATH/TO/gpt gpt2|llama [STEPS]
"""

import itertools
import os
import pathlib
import sys
import tempfile

import gpt_runs

program, kind = os.path.abspath(sys.argv[1]), sys.argv[2]
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 8


def train(data, out, ranks, workers, scheduler):
    options = gpt_runs.SHAPE | gpt_runs.KINDS[kind] | {
        "data": data, "out": out, "steps": steps, "dropout": 0.1, "seed": 7, "workers": workers, "scheduler": scheduler}
    gpt_runs.run_well(program, ranks, "train", *gpt_runs.flags(options), *gpt_runs.TILES)
    trained, validated = gpt_runs.losses(out)
    assert len(trained) == steps, f"{len(trained)} losses in {out}"
    return trained, validated, gpt_runs.states(gpt_runs.checkpoint(out))


reference, failed = None, False
with tempfile.TemporaryDirectory(prefix="tegula-bits-") as root:
    root = pathlib.Path(root)
    data = gpt_runs.prepare(program, root)
    for ranks, workers, scheduler in itertools.product((1, 2, 3, 4), (1, 2), ("eager", "lws", "dmdas")):
        found = train(data, root / f"{ranks}-{workers}-{scheduler}", ranks, workers, scheduler)
        reference = reference or found
        verdict = "the same bits"
        if found != reference:
            failed = True
            differing = [i + 1 for i, (a, b) in enumerate(zip(reference[0], found[0])) if a != b]
            verdict = f"losses differ from step {differing[0]}" if differing else "validation loss differs"
            verdict += "".join(f", {name} differs" for name in found[2] if found[2][name] != reference[2][name])
        print(f"{kind}: {ranks} ranks, {workers} workers, {scheduler}: {verdict}, ends at {found[0][-1]}", flush=True)
assert len(set(reference[0])) > 1, "the loss never changes: nothing was trained"
sys.exit(failed)
