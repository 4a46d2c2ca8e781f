"""What the comparisons with PyTorch share and what needs no PyTorch itself: which Python has it, how our app is run."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # exit code by which meson tells a skipped test
DATA = "/usr/share/datasets/fashion-mnist"


def die(message):
    print(f"{pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(1)


def find_torch_python():
    """A Python that can import torch, or None. Debian's python3-torch belongs to Debian's own python3, which
    another one may shadow in PATH."""
    candidates = [os.environ.get("TORCH_PYTHON"), sys.executable, "/usr/bin/python3"]
    candidates += [shutil.which(name) for name in ("python3", "python")]
    for candidate in dict.fromkeys(filter(None, candidates)):
        try:
            found = subprocess.run([candidate, "-c", "import torch, numpy"], capture_output=True, timeout=120)
        except OSError:
            continue
        if found.returncode == 0:
            return candidate
    return None


def need_torch_python():
    python = find_torch_python()
    if python is None:
        print("skipped: no Python here can import torch; install it with scripts/packages test (Debian's "
              "python3-torch), or name one in TORCH_PYTHON", file=sys.stderr)
        sys.exit(SKIPPED)
    return python


def run_with_torch():
    """Starts this script again under a Python that has torch, if the running one has not."""
    python = need_torch_python()
    if os.path.realpath(python) != os.path.realpath(sys.executable):
        os.execv(python, [python, *sys.argv])


def run_with_packages():
    """Starts this script again under the Python that has PyTorch and the packages of scripts/python-packages.txt."""
    folder = ROOT / ".deps/python"
    # Not the resolved path: it is by the name under which it was started that a Python finds its environment.
    if pathlib.Path(sys.prefix) == folder:
        return
    listed = (ROOT / "scripts/python-packages.txt").read_bytes()
    stamp = folder / "tegula-packages.txt"
    if not stamp.exists() or stamp.read_bytes() != listed:
        print("skipped: NOT TESTED against safetensors, tokenizers, transformers and tensorboard, as .deps/python lacks them "
              "in the versions of scripts/python-packages.txt; install them with scripts/python", file=sys.stderr)
        sys.exit(SKIPPED)
    python = str(folder / "bin/python")
    os.execv(python, [python, *sys.argv])


def run(app, flags, environment=None):
    """Runs one of our programs; returns what it wrote to standard error."""
    if not os.access(app, os.X_OK):
        die(f"{app}: no such program; build it with: ninja -C build apps/{pathlib.Path(app).name}")
    command = [str(app), *map(str, flags)]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        die(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stderr


def run_app(app, flags, out, environment=None):
    """Runs a training app; returns the objects of its metrics.jsonl and what it wrote to standard error."""
    messages = run(app, [*flags, "--out", out], environment)
    with open(pathlib.Path(out) / "metrics.jsonl", encoding="utf-8") as metrics:
        return [json.loads(line) for line in metrics], messages


def relative_differences(values, expected):
    return [abs(a - b) / abs(b) for a, b in zip(values, expected)]


def report(what, ours, theirs, tolerance):
    """Prints how far our values of each step are from PyTorch's; returns whether all are within the tolerance."""
    differences = relative_differences(ours, theirs)
    largest = max(differences, key=lambda x: float("inf") if x != x else x)
    worst = differences.index(largest)
    good = largest <= tolerance  # false for NaN as well
    print(f"largest relative difference of the {what} {largest:.2e} in step {worst + 1} (ours {ours[worst]:.8g}, PyTorch "
          f"{theirs[worst]:.8g}); {'within' if good else 'NOT within'} {tolerance:g}")
    return good


def report_rounding(what, ours, theirs, exact):
    print(f"for comparison, the {what} of PyTorch's f32 against its f64: {max(relative_differences(theirs, exact)):.2e}; "
          f"ours against its f64: {max(relative_differences(ours, exact)):.2e}")
