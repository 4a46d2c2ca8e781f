"""A training of a language model that is interrupted and goes on ends with the bits of one that is not: after so many
steps, after signals, after kill -9 of one rank at random moments, after one that stops or throws, with a message that says
who and what the others waited for; also on other numbers of ranks and workers.

    tests/app/gpt_resume.py PATH/TO/gpt [--kills N] [--seed N]
"""

import argparse
import contextlib
import functools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import gpt_runs

VALIDATE_EVERY = 5
COMMON = gpt_runs.SHAPE | gpt_runs.KINDS["llama"] | {
    "dropout": 0.1, "schedule": "constant", "validate-every": VALIDATE_EVERY, "validation-batches": 2}
ENDLESS = 1_000_000
NAMES_RANK = r"tegula: rank \d on \S+: "
AWAITED = r"waits for rank \d: tile \d+ of [\w.]+, for \w+"
AWAITED_OF_MICRO_BATCH = r"waits for rank \d: tile \d+ of [\w.]+ \(micro-batch \d+\), for \w+"


class Failure(Exception):
    pass


def expect(good, what):
    if not good:
        raise Failure(what)


def step_of(folder):
    return int(folder.name.removeprefix("step-"))


def arguments(data, out, steps, **options):
    options = {name.replace("_", "-"): value for name, value in options.items()}
    options = COMMON | {"data": data, "out": out, "steps": steps} | options
    return ["train", *gpt_runs.flags(options), *gpt_runs.TILES]


def children_of(parent):
    """Process ids of the ranks that a launcher, which we have started, has started."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # some end meanwhile
            if int(status.read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(status.parent.name))
    return sorted(found)


def rank_of(processes, rank):
    """Which of the processes is that rank, as the launcher has told them."""
    for process in processes:
        if f"OMPI_COMM_WORLD_RANK={rank}\0" in pathlib.Path(f"/proc/{process}/environ").read_text():
            return process
    raise Failure(f"no rank {rank} among {processes}")


def send_signal(number, process):
    os.kill(process, number)


def forbid_files(process):
    """The next file that it opens is one too many: a way to make one rank throw."""
    used = {int(path.name) for path in pathlib.Path(f"/proc/{process}/fd").iterdir()}
    limit = min(set(range(len(used) + 1)) - used)  # not less, which poll() would refuse
    resource.prlimit(process, resource.RLIMIT_NOFILE, (limit, resource.prlimit(process, resource.RLIMIT_NOFILE)[1]))


def steps_in(out):
    """How many steps metrics.jsonl tells of so far; its last line may be on the way."""
    with contextlib.suppress(FileNotFoundError):
        return (out / "metrics.jsonl").read_text().count('"loss_hex"')
    return 0


def latest(out):
    """The step that `latest` names, 0 without one."""
    with contextlib.suppress(FileNotFoundError):
        return step_of(gpt_runs.checkpoint(out))
    return 0


def wait_for(condition, job, what):
    end = time.monotonic() + gpt_runs.LIMIT_S
    while not condition():
        if job.poll() is not None or time.monotonic() > end:
            job.terminate()
            text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
            raise Failure(f"{what} did not come; exit code {job.returncode}\n{text}")
        time.sleep(0.005)


class Resume:
    def __init__(self, program, folder, kills, seed):
        self.program, self.folder, self.kills = program, folder, kills
        self.chance = random.Random(seed)
        self.data = gpt_runs.prepare(program, folder)
        self.checkpoints = []  # (what, step, bytes), to be compared with the undisturbed run's
        self.histories = []  # (what, losses, validations)
        self.job = None  # started last
        # Ranks that are killed leave their shared memory behind: where it goes with the rest.
        self.environment = gpt_runs.ENVIRONMENT | {"OMPI_MCA_btl_vader_backing_directory": str(folder)}
        self.failed = False

    def train(self, ranks, out, steps, **options):
        return gpt_runs.run_well(self.program, ranks, *arguments(self.data, out, steps, **options))

    def start(self, ranks, out, steps, *more, **options):
        """Always under a launcher, which must survive the death of a rank."""
        command = ["mpiexec", "--oversubscribe", "-n", str(ranks), self.program,
                   *map(str, [*arguments(self.data, out, steps, **options), *more])]
        self.job = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    text=True)
        return self.job

    def keep(self, what, out):
        newest = gpt_runs.checkpoint(out)
        self.checkpoints.append((what, step_of(newest), gpt_runs.states(newest)))

    def check(self, what, test, *given):
        start = time.monotonic()
        try:
            outcome = test(what, *given) or "good"
        except (Failure, AssertionError, OSError, SystemExit, subprocess.TimeoutExpired) as error:
            self.failed, outcome = True, f"FAILED: {error}"
        if self.job and self.job.poll() is None:
            self.job.terminate()
            self.job.wait()
        print(f"{what}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)

    def halves(self, what, ranks, workers):
        """Six steps, six more on `ranks`."""
        out = self.folder / f"halves-{ranks}-{workers}"
        self.train(1, out, 6)
        text = self.train(ranks, out, 12, resume="auto", workers=workers)
        expect("step-00000006 at step 6" in text, text)
        self.keep(what, out)
        self.histories.append((what, *gpt_runs.losses(out)))

    def branch(self, what):
        """From a checkpoint's folder into a folder of its own."""
        first, second = self.folder / "halves-1-1", self.folder / "branch"
        self.train(2, second, 9, resume=first / "checkpoints" / "step-00000006")
        self.keep(what, second)
        expect([line["step"] for line in gpt_runs.metrics(second) if "loss_hex" in line] == [7, 8, 9],
               "not the steps behind the checkpoint")

    def again(self, what):
        """A run that is complete is left as it is."""
        out = self.folder / "halves-1-1"
        before = gpt_runs.losses(out), gpt_runs.states(gpt_runs.checkpoint(out))
        self.train(1, out, 12, resume="auto")
        expect(before == (gpt_runs.losses(out), gpt_runs.states(gpt_runs.checkpoint(out))), "something has changed")

    def interrupted(self, what, number, code, ranks):
        out = self.folder / f"{number.name}-{ranks}"
        job = self.start(ranks, out, ENDLESS)
        wait_for(lambda: steps_in(out) > 2, job, "the third step")
        victims = children_of(job.pid)
        os.kill(self.chance.choice(victims), number)
        text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
        expect(job.returncode == code, f"exit code {job.returncode}\n{text}")
        done = latest(out)
        expect(f"stopped by a signal at step {done}; continue with --resume auto" in text, text)
        expect(len(gpt_runs.losses(out)[0]) == done, f"checkpoint of step {done}, {gpt_runs.metrics(out)[-1]}")
        self.keep(what, out)
        self.train(3 - ranks, out, done + 3, resume="auto", workers=2)
        self.keep(what + ", resumed", out)
        self.histories.append((what, *gpt_runs.losses(out)))
        return f"good, at step {done}"

    def killed(self, what):
        out = self.folder / "killed"
        reached = 0
        for number in range(self.kills):
            ranks = number % 3 + 1
            job = self.start(ranks, out, ENDLESS, save_every=2, keep=2, resume="auto", workers=number % 2 + 1)
            # Every third time wherever it is, else once it trains.
            if number % 3 != 2:
                wait_for(lambda: latest(out) > reached, job, "the next checkpoint")
            else:
                wait_for(lambda: len(children_of(job.pid)) == ranks, job, "the ranks")
            time.sleep(self.chance.random())
            victims = children_of(job.pid)
            expect(len(victims) == ranks, f"{len(victims)} of {ranks} ranks are left before any was killed")
            before = latest(out)
            os.kill(self.chance.choice(victims), signal.SIGKILL)
            text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
            expect(job.returncode != 0, "mpiexec ends well although a rank was killed")
            resumed = re.search(r"resumed from \S+ at step (\d+)", text)
            expect(not resumed or int(resumed[1]) == reached, f"did not resume at step {reached}\n{text}")
            after = latest(out)
            expect(after >= before >= reached, f"latest was {reached}, {before} before the kill, {after} behind it")
            reached = after
            if reached:
                expect(len(gpt_runs.losses(out)[0]) >= reached, f"checkpoint of step {reached}, metrics of fewer")
                self.keep(f"killed {number + 1} times", out)
            print(f"  killed one of {ranks} ranks, at step {reached}, metrics of {steps_in(out)} steps", flush=True)
        text = self.train(2, out, reached + 3, resume="auto", save_every=2)
        expect(f"at step {reached}" in text or reached == 0, text)
        self.keep(what, out)
        self.histories.append((what, *gpt_runs.losses(out)))
        left = [path.name for path in (out / "checkpoints").iterdir() if path.suffix in (".partial", ".old")]
        expect(not left, f"left behind: {left}")

    def ended_by(self, what, ranks, victim, strike, message, awaited, *plan):
        """One rank is struck: the job ends within 30 s with `message`, the other ranks wait for what `awaited` says, and the
        training goes on."""
        out = self.folder / what.replace(" ", "-")
        job = self.start(ranks, out, ENDLESS, *plan, save_every=4, silence_limit=3)
        wait_for(lambda: latest(out) >= 4, job, "a checkpoint")
        start = time.monotonic()
        strike(rank_of(children_of(job.pid), victim))
        text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
        seconds = time.monotonic() - start
        expect(job.returncode != 0 and seconds < 30, f"exit code {job.returncode} after {seconds} s\n{text}")
        expect(len(re.findall(message, text)) == 1, text)
        waiting = re.findall(NAMES_RANK + ".*" + awaited, text)
        expect(len(waiting) == ranks - 1, text)
        reached = latest(out)
        self.keep(what, out)
        text = self.train(3 - ranks if ranks < 3 else 1, out, reached + 3, resume="auto")
        expect(f"at step {reached}" in text, text)
        self.keep(what + ", resumed", out)
        self.histories.append((what, *gpt_runs.losses(out)))
        return f"good, ended in {seconds:.1f} s, at step {reached}"

    def saved_with_metrics(self, what):
        """Behind a complete checkpoint are the metrics of all its steps, also where steps take longer than saves."""
        out = self.folder / "metrics"
        job = self.start(1, out, ENDLESS, save_every=2, context=128, hidden=512, batch=12, validate_every=0)
        wait_for(lambda: latest(out) >= 4, job, "the second checkpoint")
        for rank in children_of(job.pid):
            os.kill(rank, signal.SIGKILL)
        job.communicate(timeout=gpt_runs.LIMIT_S)
        expect(steps_in(out) >= latest(out), f"checkpoint of step {latest(out)}, metrics of {steps_in(out)} steps")

    def undisturbed(self, what):
        """One run to the last step that any other has reached, with all its checkpoints, to compare them with."""
        out = self.folder / "undisturbed"
        last = max(step for _, step, _ in self.checkpoints)
        self.train(1, out, last, save_every=1, keep=0)
        losses, validations = gpt_runs.losses(out)
        expect(len(losses) == last and len(set(losses)) > 1, "nothing was trained")
        wrong = []
        for name, step, found in self.checkpoints:
            expected = gpt_runs.states(out / "checkpoints" / f"step-{step:08}")
            wrong += [f"{name}: {file} of step {step}" for file in found if found[file] != expected[file]]
        for name, found, validated in self.histories:
            if found != losses[: len(found)]:
                wrong.append(f"{name}: losses")
            if [(s, loss) for s, loss in validated if s % VALIDATE_EVERY == 0] != \
                    [(s, loss) for s, loss in validations if s % VALIDATE_EVERY == 0 and s <= len(found)]:
                wrong.append(f"{name}: validation losses {validated} of {validations}")
        expect(not wrong, "\n  differs: ".join(["", *wrong]))
        return f"the same bits in {len(self.checkpoints)} checkpoints and {len(self.histories)} logs, {last} steps"

    def run(self):
        for ranks, workers in (1, 1), (3, 2):
            self.check(f"6 steps, 6 more on {ranks} ranks with {workers} workers", self.halves, ranks, workers)
        self.check("from a checkpoint into another folder", self.branch)
        self.check("a complete run again", self.again)
        for number, code, ranks in (signal.SIGTERM, 75, 2), (signal.SIGUSR1, 75, 1), (signal.SIGINT, 130, 1):
            self.check(f"{number.name} to one of {ranks} ranks", self.interrupted, number, code, ranks)
        self.check(f"killed {self.kills} times", self.killed)
        pipeline = self.folder / "pipeline.toml"
        pipeline.write_text(f'mesh = {{stage = 2}}\nmicro-batches = "batch"\nschedule = "1f1b"\n'
                            '[stages]\nalong = "stage"\neven = 2\n')
        stop, kill = (functools.partial(send_signal, number) for number in (signal.SIGSTOP, signal.SIGKILL))
        self.check("a rank that stops", self.ended_by, 3, 2, stop,
                   NAMES_RANK + r"nothing was heard of rank 2 on \S+ for 3 s", AWAITED)
        self.check("a stage that stops", self.ended_by, 2, 0, stop, NAMES_RANK + r"nothing was heard of rank 0 on \S+ for 3 s",
                   AWAITED_OF_MICRO_BATCH, "--plan", pipeline)
        self.check("a rank that is killed", self.ended_by, 2, 1, kill,
                   NAMES_RANK + r"nothing is heard of rank 1 on \S+: it has died", AWAITED)
        # All ranks hear of a checkpoint that one of them cannot write.
        self.check("a rank that throws", self.ended_by, 2, 1, forbid_files,
                   NAMES_RANK + r"\[checkpoint\] step \d+ was not saved: .*Too many open files", "step")
        self.check("killed behind a checkpoint", self.saved_with_metrics)
        self.check("the undisturbed run", self.undisturbed)
        return 1 if self.failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16), help="of the moments to kill at")
    given = parser.parse_args()
    print(f"--seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tegula-resume-") as root:
        raise SystemExit(Resume(given.program, pathlib.Path(root), given.kills, given.seed).run())
