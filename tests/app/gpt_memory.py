"""Peak memory of a training against the length of the sequence: attention keeps no matrix of scores, so that memory
grows with the length, not with its square.

    tests/app/gpt_memory.py PATH/TO/gpt
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import gpt_runs

program = os.path.abspath(sys.argv[1])
LENGTHS = 256, 1024, 4096
HEADS = 16


def peak_bytes(data, out, kind, length):
    options = gpt_runs.SHAPE | gpt_runs.KINDS[kind] | {
        "data": data, "out": out, "steps": 2, "batch": 1, "layers": 1, "heads": HEADS, "key-value-heads": HEADS,
        "head-dim": 16, "hidden": 512, "context": length, "validation-batches": 1}
    command = gpt_runs.launch(program, 1, "train", *gpt_runs.flags(options), "--tile", "sequence=256")
    job = subprocess.Popen(command, env=gpt_runs.ENVIRONMENT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(job.pid, 0)  # getrusage() knows only the largest of all children
    job.returncode = os.waitstatus_to_exitcode(status)
    if job.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {job.returncode}")
    return 1024 * usage.ru_maxrss


failed = False
with tempfile.TemporaryDirectory(prefix="tegula-memory-") as root:
    root = pathlib.Path(root)
    gpt_runs.write_text(root / "text.txt", words=4000)
    gpt_runs.run_well(program, 1, "prepare", "--text", root / "text.txt", "--out", root / "data", "--validation", 0.4)
    for kind in gpt_runs.KINDS:
        short, middle, long = (peak_bytes(root / "data", root / f"{kind}-{length}", kind, length) for length in LENGTHS)
        scores = 4 * HEADS * LENGTHS[-1] ** 2
        # Linear growth would be 4, quadratic 16 times as much; malloc keeps some of what is free.
        good = long - middle < 8 * (middle - short) and long - middle < scores / 4
        failed = failed or not good
        print(f"{kind}: {short / 1e6:.1f} MB for a sequence of {LENGTHS[0]}, {(middle - short) / 1e6:.1f} MB more for "
              f"{LENGTHS[1]}, {(long - middle) / 1e6:.1f} MB more for {LENGTHS[2]}, whose scores would be "
              f"{scores / 1e6:.0f} MB: {'linear' if good else 'FAILED'}", flush=True)
sys.exit(failed)
