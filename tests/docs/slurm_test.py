"""The batch files of docs/slurm under a real Slurm, which is started here with two nodes that are this machine: each trains,
is stopped as ahead of a time limit, is queued again and ends with the bits of an undisturbed run.

    tests/docs/slurm_test.py SOURCE_ROOT BUILD_ROOT

Skipped where Slurm is not installed or nobody is root.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
sys.path.insert(0, str(source / "tests" / "app"))
import gpt_runs  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
STEPS = 150
LIMIT_S = 60
# cred_expire: what is queued again starts after this time; sched_interval: or when Slurm next looks, once a minute by itself.
CONFIGURATION = """
ClusterName=tegula
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
KillWait=5
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:2
PartitionName=main Nodes=node[1-2] Default=YES State=UP
"""


def expect(good, what):
    if not good:
        raise AssertionError(what)


def wait_for(condition, what):
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        expect(time.monotonic() < end, f"{what} did not come in {LIMIT_S} s")
        time.sleep(0.1)
    return found


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.environment = gpt_runs.ENVIRONMENT | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_all(self):
        self.folder.chmod(0o755)  # munged wants its clients to reach the socket
        for name in "state", "spool-node1", "spool-node2":
            (self.folder / name).mkdir()
        for gpu in "gpu0", "gpu1":  # no tests look into them
            (self.folder / gpu).touch()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(folder=self.folder, host=socket.gethostname().split(".")[0], ports=free_ports(3)))
        (self.folder / "gres.conf").write_text(f"NodeName=node[1-2] Name=gpu File={self.folder}/gpu[0-1]\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        self.start("munged", "--foreground", *(f"--{flag}={self.folder}/munge.{name}" for flag, name in files.items()))
        wait_for((self.folder / "munge.socket").exists, "munged")
        self.start("slurmctld", "-D", "-c")
        for node in "node1", "node2":
            self.start("slurmd", "-D", "-c", "-N", node)
        wait_for(lambda: self.run("sinfo", "--noheader", "-o", "%D %t").split() == ["2", "idle"], "two idle nodes")

    def __exit__(self, *_):
        # Jobs first, of a test that has failed: slurmd would wait for them.
        if len(self.daemons) > 1:
            self.run("scancel", "--user=root")
            end = time.monotonic() + LIMIT_S
            while self.run("squeue", "--noheader").strip() and time.monotonic() < end:
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
            daemon.kill()
        # What keeps a step, and would go on telling a controller that is gone of its end.
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = f"SLURM_CONF={self.folder}/slurm.conf".encode() in (process / "environ").read_bytes().split(b"\0")
                if ours and (process / "comm").read_text().startswith("slurmstepd"):
                    os.kill(int(process.name), signal.SIGKILL)

    def start(self, *command):
        log = (self.folder / f"{len(self.daemons)}-{command[0]}.out").open("w")
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def run(self, *command, **options):
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True, **options)
        return done.stdout

    def job(self, number):
        """What scontrol tells of it: name to value."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", number)))


def arguments(data, out):
    options = gpt_runs.SHAPE | gpt_runs.KINDS["llama"] | {
        "data": data, "out": out, "steps": STEPS, "dropout": 0.1, "schedule": "constant"}
    return [*gpt_runs.flags(options), *gpt_runs.TILES]


def steps_of(out):
    path = out / "metrics.jsonl"
    return path.read_text().count('"loss_hex"') if path.exists() else 0


def train(slurm, work, data, name, table, signal_flags, smaller):
    out, log = work / "runs" / name, work / f"{name}.log"
    command = ["sbatch", "--parsable", f"--output={log}", "--cpus-per-task=1", "--time=5", *smaller, f"docs/slurm/{name}.sbatch"]
    number = slurm.run(*command, *arguments(data, out), cwd=work).strip()
    expect(number.isdigit(), f"{command} gave {number!r}")
    try:
        wait_for(lambda: steps_of(out) > 2, "the third step")
        slurm.run("scancel", *signal_flags, "--signal=USR1", number)
        wait_for(lambda: slurm.job(number)["Restarts"] == "1", "the job in the queue again")
        wait_for(lambda: slurm.job(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), "the end of the job")
        expect(slurm.job(number)["JobState"] == "COMPLETED", slurm.job(number))
        text = log.read_text()
        stopped = re.search(r"stopped by a signal at step (\d+)", text)
        expect(stopped and int(stopped[1]) < STEPS and f"at step {stopped[1]}" in text[stopped.end():], text)
        expect(table in text, text)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text() if log.exists() else 'no log'}") from None
    return out, int(stopped[1])


def main():
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing or os.geteuid() != 0:
        print(f"skipped: {'no ' + ', '.join(missing) if missing else 'only root can start Slurm'}")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing is left behind
    program = build / "apps" / "gpt"
    with tempfile.TemporaryDirectory(prefix="tegula-slurm-") as root, Slurm(pathlib.Path(root)) as slurm:
        work = pathlib.Path(root) / "work"
        (work / "runs").mkdir(parents=True)
        (work / "build").symlink_to(build)
        (work / "docs").symlink_to(source / "docs")
        data = gpt_runs.prepare(program, work)
        one = work / "runs" / "one"
        gpt_runs.run_well(program, 1, "train", *arguments(data, one))
        for name, table, signal_flags, smaller in (
                ("node", "2 ranks on 2 nodes", ["--batch"], []),
                # srun on two nodes takes two machines: Slurm's PMIx has one folder per machine and job.
                ("gpu", "2 ranks on 1 node", [], ["--nodes=1", "--ntasks-per-node=2"])):
            out, stopped = train(slurm, work, data, name, table, signal_flags, smaller)
            expect(gpt_runs.losses(out)[0] == gpt_runs.losses(one)[0], f"{name}: the losses differ")
            expect(gpt_runs.states(gpt_runs.checkpoint(out)) == gpt_runs.states(gpt_runs.checkpoint(one)), f"{name}: the checkpoint differs")
            print(f"{name}.sbatch: stopped at step {stopped}, went on to {STEPS} with the same bits", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
