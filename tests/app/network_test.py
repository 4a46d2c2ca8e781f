"""Ranks on nodes of their own, with nothing but a network between them: network namespaces of this machine, and a bridge. A
training has the bits that it has on one rank, what a plan says will be sent does cross the network, and all ranks end, with
words, when one stops or dies or its node is cut off.

    tests/app/network_test.py PATH/TO/gpt

Making namespaces takes root; without, the test is skipped.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import gpt_runs
from gpt_resume import AWAITED, ENDLESS, Failure, expect, latest, wait_for

PREFIX = "tegula-test-"
NODES = (1, 2, 3, 4)
STEPS = 12
# A command on a node. `ip netns exec` gives it mounts of its own: nobody shall ask a name server, which there is none of.
ON_NODE = """#!/bin/sh
node=$1
shift
exec ip netns exec {base}$node unshare --uts sh -ec '
  echo node$0 >/proc/sys/kernel/hostname
  mount --bind {folder}/hosts /etc/hosts
  mount --bind {folder}/nsswitch.conf /etc/nsswitch.conf
  exec "$@"' $node "$@"
"""
# Started by mpiexec as ssh would be: AGENT ADDRESS COMMAND...
AGENT = """#!/bin/sh
node=${{1##*.}}
shift
exec {folder}/on-node $node sh -c "$*"
"""


def ip(*arguments):
    return subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def address(node):
    return f"10.77.0.{node}"


def namespaces():
    return [line.split()[0] for line in ip("netns", "list").splitlines()]


def remove(namespace):
    """With the processes that are left in it: a daemon that was cut off does not hear that the job is over."""
    for process in ip("netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    ip("netns", "delete", namespace)


def remove_stale():
    """Of tests that were killed."""
    for name in namespaces():
        test = re.fullmatch(PREFIX + r"(\d+)-\w+", name)
        if test and not pathlib.Path("/proc", test[1]).exists():
            remove(name)


def what_forbids_namespaces():
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "port", "type", "veth", "peer", "name", "eth0")
            ip("-n", name, "link", "add", "bridge", "type", "bridge")
            subprocess.run(["ip", "netns", "exec", name, "unshare", "--uts", "true"], check=True, capture_output=True, text=True)
        finally:
            ip("netns", "delete", name)
    except FileNotFoundError:
        return "there is no ip (package iproute2)"
    except subprocess.CalledProcessError as error:
        return error.stderr.strip()
    return None


class Network:
    """Nodes, each with a host name and an address, and a hub that has the bridge. All is in namespaces, and goes with them."""

    def __init__(self, folder):
        self.folder = folder
        self.base = f"{PREFIX}{os.getpid()}-"
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address(node)} node{node}\n" for node in NODES)
        (folder / "hosts").write_text(hosts)
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        for name, text in ("on-node", ON_NODE), ("agent", AGENT):
            (folder / name).write_text(text.format(base=self.base, folder=folder))
            (folder / name).chmod(0o755)

    def __enter__(self):
        remove_stale()
        try:
            hub = self.base + "hub"
            ip("netns", "add", hub)
            ip("-n", hub, "link", "add", "bridge", "type", "bridge")
            ip("-n", hub, "link", "set", "bridge", "up")
            for node in NODES:
                name, port = f"{self.base}{node}", f"port{node}"
                ip("netns", "add", name)
                ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("-n", hub, "link", "set", port, "master", "bridge", "up")
                ip("-n", name, "address", "add", f"{address(node)}/24", "dev", "eth0")
                for link in "lo", "eth0":
                    ip("-n", name, "link", "set", link, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in namespaces():
            if name.startswith(self.base):
                remove(name)

    def mpiexec(self):
        """On the first node, with a rank on each."""
        subnet = f"{address(0)}/24"
        parameters = {"plm": "rsh", "plm_rsh_agent": self.folder / "agent", "pml": "ob1", "btl": "tcp,self",
                      "btl_tcp_if_include": subnet, "oob_tcp_if_include": subnet}
        command = [self.folder / "on-node", NODES[0], "mpiexec", "--host", ",".join(map(address, NODES)),
                   "--map-by", "ppr:1:node", "--bind-to", "none"]
        for name, value in parameters.items():
            command += ["--mca", name, value]
        return list(map(str, command))

    def cut_off(self, node):
        ip("-n", self.base + "hub", "link", "set", f"port{node}", "down")

    def connect(self, node):
        """mpiexec goes on waiting for a daemon that was cut off, as long as the system repeats what it sends to it."""
        ip("-n", self.base + "hub", "link", "set", f"port{node}", "up")

    def traffic(self, node):
        """(sent, received) bytes so far."""
        count = json.loads(ip("-json", "-statistics", "-n", f"{self.base}{node}", "link", "show", "eth0"))[0]["stats64"]
        return count["tx"]["bytes"], count["rx"]["bytes"]

    def process(self, node, program):
        """That of the rank on the node."""
        for process in ip("netns", "pids", f"{self.base}{node}").split():
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{process}/exe").resolve() == pathlib.Path(program):
                    return int(process)
        raise Failure(f"node {node} runs no {program}")


class Test:
    def __init__(self, program, folder, network):
        self.program, self.folder, self.network = program, folder, network
        self.data = gpt_runs.prepare(program, folder)

    def arguments(self, out, steps, **options):
        options = {name.replace("_", "-"): value for name, value in options.items()}
        options = gpt_runs.SHAPE | gpt_runs.KINDS["llama"] | {
            "data": self.data, "out": out, "steps": steps, "dropout": 0.1, "schedule": "constant", "batch": 2 * len(NODES)} | options
        return ["train", *gpt_runs.flags(options), *gpt_runs.TILES]

    def start(self, out, steps, **options):
        command = [*self.network.mpiexec(), self.program, *map(str, self.arguments(out, steps, **options))]
        return subprocess.Popen(command, env=gpt_runs.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def same_bits(self):
        before = [self.network.traffic(node) for node in NODES]
        out = self.folder / "nodes"
        job = self.start(out, STEPS)
        text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
        expect(job.returncode == 0, text)
        expect(f"{len(NODES)} ranks on {len(NODES)} nodes" in text, text)
        gpt_runs.run_well(self.program, 1, *self.arguments(self.folder / "one", STEPS))
        one = self.folder / "one"
        expect(gpt_runs.losses(out) == gpt_runs.losses(one), f"losses differ: {gpt_runs.losses(out)} {gpt_runs.losses(one)}")
        expect(gpt_runs.states(gpt_runs.checkpoint(out)) == gpt_runs.states(gpt_runs.checkpoint(one)), "the checkpoint differs")
        crossed = []
        for rank, node in enumerate(NODES):
            # rank, tasks, Gflop, sent MB, received MB, ...
            predicted = re.search(rf"^ *{rank} +\d+ +[\d.]+ +([\d.]+) +([\d.]+)", text, re.MULTILINE)
            expect(predicted, text)
            for which, megabytes in enumerate(map(float, predicted.groups())):
                counted = self.network.traffic(node)[which] - before[rank][which]
                expect(counted >= STEPS * megabytes * 1e6 > 0, f"{counted} bytes, predicted {megabytes} MB a step")
                crossed.append(counted)
        return f"{sum(crossed) / 2e6:.1f} MB crossed the network"

    def ended(self, strike, lost):
        """When the rank of the third node is struck, all ranks end within 30 s: the one behind it says what is `lost`, and
        all that are left say what they wait for."""
        job = self.start(self.folder / strike.__name__, ENDLESS, silence_limit=3, save_every=2)
        wait_for(lambda: latest(self.folder / strike.__name__) >= 2, job, "a checkpoint")
        ranks = [self.network.process(node, self.program) for node in NODES]
        start = time.monotonic()
        strike(ranks[2])
        while any(map(is_alive, ranks)) and time.monotonic() - start < 30:
            time.sleep(0.1)
        seconds = time.monotonic() - start
        left = [rank for rank, process in enumerate(ranks) if is_alive(process)]
        self.network.connect(3)
        text, _ = job.communicate(timeout=gpt_runs.LIMIT_S)
        expect(not left and job.returncode != 0, f"exit code {job.returncode}, after 30 s are left: {left}\n{text}")
        expect(re.search(rf"tegula: rank 3 on node4: {lost}.*; this rank {AWAITED}", text), text)
        for rank, node in (0, 1), (1, 2):
            expect(re.search(f"tegula: rank {rank} on node{node}: {AWAITED}", text), text)
        return f"ranks ended in {seconds:.1f} s"

    def stop(self, process):
        os.kill(process, signal.SIGSTOP)

    def kill(self, process):
        os.kill(process, signal.SIGKILL)

    def cut_off(self, _):
        self.network.cut_off(3)


def is_alive(process):
    """A zombie is not."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def main(program):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing is left behind
    if reason := what_forbids_namespaces():
        print(f"skipped: no network namespaces: {reason}")
        return 77
    failed = False
    with tempfile.TemporaryDirectory(prefix="tegula-network-") as root, Network(pathlib.Path(root)) as network:
        test = Test(program, pathlib.Path(root), network)
        silent = r"nothing was heard of rank 2 on node3 for 3 s"
        for name, what, *given in (("the bits of one rank", test.same_bits),
                                   ("a rank that stops", test.ended, test.stop, silent),
                                   ("a rank that is killed", test.ended, test.kill, "nothing is heard of rank 2 on node3: it has died"),
                                   ("a node that is cut off", test.ended, test.cut_off, silent)):
            start = time.monotonic()
            try:
                outcome = what(*given)
            except (Failure, AssertionError, OSError, SystemExit, subprocess.SubprocessError) as error:
                failed, outcome = True, f"FAILED: {error}"
            print(f"{name}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
