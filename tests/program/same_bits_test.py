"""Same tiling, same bits: runs `training` on 1 to 4 ranks, with 1 and 2 workers, under three schedulers, and compares what it
prints. Then gives it a label that there is not, on several ranks.

    same_bits_test.py MPIEXEC PATH/TO/training
"""

import subprocess
import sys
import time

mpiexec, program = sys.argv[1:]


def train(ranks, *arguments):
    command = [mpiexec, "--oversubscribe", "-n", str(ranks), program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


failed = False
reference = None
for ranks, workers, scheduler in [(1, 1, "lws"), (1, 2, "lws"), (1, 1, "eager"), (1, 2, "dmdas"),
                                  (2, 1, "lws"), (2, 2, "dmdas"), (3, 1, "eager"), (4, 1, "lws")]:
    start = time.monotonic()
    run = train(ranks, str(workers), scheduler)
    reference = reference or run.stdout
    good = run.returncode == 0 and run.stdout == reference and reference.count("loss") == 75
    print(f"{ranks} ranks, {workers} workers, {scheduler}: {'the same bits' if good else 'FAILED'}"
          f" ({time.monotonic() - start:.1f} s)", flush=True)
    if not good:
        failed = True
        print(f"exit code {run.returncode}\n{run.stdout}{run.stderr}")

start = time.monotonic()
run = train(3, "1", "lws", "bad-label")
message = "[softmax_cross_entropy] the target of row 1 is 5, but there are 5 classes"
good = run.returncode == 1 and run.stderr.count(message) == 1
print(f"a label out of range: {'one message, exit code 1' if good else 'FAILED'} ({time.monotonic() - start:.1f} s)")
if not good:
    failed = True
    print(f"exit code {run.returncode}\n{run.stdout}{run.stderr}")
sys.exit(failed)
