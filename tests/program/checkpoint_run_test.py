"""Checkpoints between runs: the same bytes from any number of ranks under any tiling, and always one to resume from when a
rank is killed while it saves.

    checkpoint_run_test.py MPIEXEC PATH/TO/checkpoint_run
"""

import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

mpiexec, program = sys.argv[1:]
failed = False


def command(ranks, *arguments):
    return [mpiexec, "--oversubscribe", "-n", str(ranks), program, *map(str, arguments)]


def run(ranks, *arguments):
    return subprocess.run(command(ranks, *arguments), capture_output=True, text=True, timeout=120)


def hashes(root):
    """Of all files, by name."""
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*")) if path.is_file()}


def report(what, good, details=""):
    global failed
    print(f"{what}: {'good' if good else 'FAILED'}", flush=True)
    if not good:
        failed = True
        print(details, flush=True)


def same_bytes(folder):
    reference = None
    for ranks, tile in [(1, 1000), (1, 4), (2, 5), (3, 7), (3, 3)]:
        root = folder / f"save-{ranks}-{tile}"
        done = run(ranks, "save", root, tile)
        found = hashes(root)
        reference = reference or found
        report(f"saved by {ranks} ranks in tiles of {tile}, the same bytes",
               done.returncode == 0 and found == reference and len(found) == 4, f"{found}\n{done.stderr}")
    # Loaded and saved again, all but the number of updates being as it was.
    for ranks, tile in [(2, 3), (3, 1000), (1, 6)]:
        root = folder / f"copy-{ranks}-{tile}"
        done = run(ranks, "copy", folder / "save-2-5", root, tile)
        report(f"loaded and saved by {ranks} ranks in tiles of {tile}, the same bytes",
               done.returncode == 0 and hashes(root) == reference, f"{hashes(root)}\n{done.stderr}")


def children_of(parent):
    """Process ids of the ranks that a launcher, which we have started, has started."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return sorted(found)


def killed_while_saving(folder, rounds=9):
    root = folder / "endless"
    chance = random.Random(5)
    reached = 0
    for number in range(rounds):
        ranks = number % 3 + 1
        job = subprocess.Popen(command(ranks, "endless", root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = job.stdout.readline()  # it runs, and has resumed
        second = job.stdout.readline()
        time.sleep(chance.random() * 0.1)
        victims = children_of(job.pid)
        killed = bool(victims)
        if killed:
            os.kill(chance.choice(victims), signal.SIGKILL)
        out, errors = job.communicate(timeout=60)
        saved = [int(line.split()[1]) for line in (first + second + out).splitlines() if line.startswith("saved")]
        left = sorted(path.name for path in root.iterdir())
        check = run(number % 2 + 1, "check", root)
        step = int(check.stdout.split()[1]) if check.stdout.startswith("step") else -1
        latest = (root / "latest").read_text().strip()
        good = (killed and check.returncode == 0 and len(saved) > 1 and step >= saved[-1] > reached
                and (root / latest / "state.json").exists())
        report(f"killed one of {ranks} ranks after step {step}, {len(left)} names left", good,
               f"{saved} {left} {check.stdout}{check.stderr}{errors}")
        reached = step


def thrown_while_saving(folder):
    """An exception on one rank ends the job, whatever the threads that write are waiting for."""
    for ranks in (1, 3):
        root = folder / f"throw-{ranks}"
        start = time.monotonic()
        done = run(ranks, "throw", root)
        seconds = time.monotonic() - start
        check = run(1, "check", root)
        good = (done.returncode == 1 and done.stderr.count("no more data") == 1 and seconds < 15
                and check.stdout in (["step 1\n"] if ranks == 1 else ["step 0\n", "step 1\n"]))
        report(f"one of {ranks} ranks throws: exit code 1 after {seconds:.1f} s", good, f"{done} {check}")


with tempfile.TemporaryDirectory(prefix="tegula-checkpoints-") as name:
    same_bytes(pathlib.Path(name))
    thrown_while_saving(pathlib.Path(name))
    killed_while_saving(pathlib.Path(name))
sys.exit(failed)
