#!/usr/bin/env python3
"""Two ranks on two hosts of one machine: network namespaces, joined by a link of a given rate and delay. Compares their files with those
of one process, and the time of a step with the model of scale_model.py.

    python3 reference/namespaces.py --qbert QBERT_WITH_MPI --train sst2/train.tsv --dev DEV --out results/ranks-network.json

Needs root, Open MPI and /dev/net/tun. The link is a relay of this script between two tap devices, because not every kernel has `tc netem`:
a frame leaves when the link has sent all earlier ones at its rate, and arrives the delay later.
"""

import argparse
import collections
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks
import scale_model

HOSTS = {"qbert-1": "10.99.0.1", "qbert-2": "10.99.0.2"}
# Large frames, so that a relay in Python keeps up.
MTU = 60_000
# What may wait in a link before its sender has to.
MOST_WAITING = 4 << 20
EAGER_BYTES = 8 << 20
CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0002, 0x1000
# What mpirun calls instead of ssh: the host is an address of a namespace.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
space=qbert-${1##*.}; shift
exec ip netns exec "$space" unshare --uts sh -c "hostname $space; $*"
"""


def tap(space):
    """The device eth0 of a namespace, as a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open(f"/var/run/netns/{space}") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)
    return device


def relay(source, target, bytes_per_second, delay):
    """Starts a link in one direction."""
    waiting, room = collections.deque(), threading.Condition()

    def take():
        free = 0.0
        while True:
            frame = os.read(source, MTU + 100)
            free = max(free, time.perf_counter()) + len(frame) / bytes_per_second
            with room:
                room.wait_for(lambda: len(waiting) * MTU < MOST_WAITING)
                waiting.append((free + delay, frame))
                room.notify_all()

    def give():
        while True:
            with room:
                room.wait_for(lambda: waiting)
                due, frame = waiting[0]
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            os.write(target, frame)
            with room:
                waiting.popleft()
                room.notify_all()

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()


def run(*words, **more):
    return subprocess.run(words, check=True, **more)


def connect(gbit, delay):
    sys.setswitchinterval(1e-4)
    for space in HOSTS:
        subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)
        run("ip", "netns", "add", space)
    first, second = (tap(space) for space in HOSTS)
    for space, address in HOSTS.items():
        inside = ["ip", "netns", "exec", space, "ip"]
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "eth0", "mtu", str(MTU), "up")
        run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
    for pair in ((first, second), (second, first)):
        relay(*pair, gbit / 8 * 1e9, delay)


def ping():
    """The round trip of a small frame in ms, the median of some."""
    words = ["ip", "netns", "exec", "qbert-1", "ping", "-n", "-c", "50", "-i", "0.02", HOSTS["qbert-2"]]
    if not shutil.which("ping"):
        return None
    lines = run(*words, capture_output=True, text=True).stdout.splitlines()
    times = sorted(float(line.split("time=")[1].split()[0]) for line in lines if "time=" in line)
    return times[len(times) // 2]


def mpirun_between(agent):
    hosts = ",".join(f"{address}:1" for address in HOSTS.values())
    words = ["mpirun", "--allow-run-as-root", "-n", "2", "--host", hosts, "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self"]
    words += ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "10.99.0.0/24", "--mca", "oob_tcp_if_include", "10.99.0.0/24", "--bind-to", "none"]
    return ["ip", "netns", "exec", "qbert-1", "unshare", "--uts", "sh", "-c", 'hostname qbert-1; exec "$@"', "sh", *words]


def same_bytes(qbert, scratch, start):
    """Compares the files of all shared verbs but `run`, which takes a file system in common."""
    found = []
    for name, count in (("alone", None), ("apart", 2)):
        home = scratch / name
        qbert.prepare(home)
        ranks.mpirun = lambda _: start
        for verb, words in ranks.jobs(1).items():
            if verb != "run":
                qbert.finish(home, count, verb, words)
        found.append(ranks.files(home))
    ranks.compare(found[1], found[0], "two namespaces")
    return len(found[0])


def seconds_per_step(start, options, scratch):
    times = []
    for steps in options.steps:
        words = [*start, str(pathlib.Path(options.qbert).resolve()), "finetune", "--model", options.model, "--task", "sst2", "--train", options.train]
        words += ["--dev", options.dev, "--batch", "32", "--epochs", "1", "--threads", "1", "--max-train", str(32 * steps), "-q"]
        begun = time.perf_counter()
        run(*words, "--out", str(scratch / f"timed-{len(list(scratch.iterdir()))}"), stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begun)
    return (times[1] - times[0]) / (options.steps[1] - options.steps[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qbert", required=True, help="built with the feature mpi")
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--delay", type=float, default=1.0, help="milliseconds in each direction")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True, help="a small file")
    parser.add_argument("--steps", type=int, nargs=2, default=[5, 25])
    parser.add_argument("--tokens", type=int, default=420, help="of a batch, on average")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    connect(options.gbit, options.delay / 1e3)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            agent = scratch / "agent"
            agent.write_text(AGENT)
            agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
            apart = mpirun_between(agent)
            result = {"gbit_per_second": options.gbit, "delay_ms": options.delay, "round_trip_ms": ping()}
            result["files_the_same"] = same_bytes(ranks.Qbert(options.qbert), scratch, apart)
            print(json.dumps(result), flush=True)
            together = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "core"]
            one, near, far = (seconds_per_step(start, options, scratch) for start in ([], together, apart))
            # By default Open MPI asks the receiver before it sends more than 64 KiB over TCP: a round trip for every message.
            os.environ["OMPI_MCA_btl_tcp_eager_limit"] = str(EAGER_BYTES)
            eager = seconds_per_step(apart, options, scratch)
    finally:
        for space in HOSTS:
            subprocess.run(["ip", "netns", "del", space], check=False)
    # What every rank repeats is what two ranks without a network do not save.
    repeated = max(0.0, 2 * near - one)
    model = scale_model.MODELS["MiniLM"]
    predicted = scale_model.seconds(model, options.tokens, 2, one - repeated, repeated, options.gbit, options.delay / 1e3)
    times = {"one rank": one, "two ranks of one host": near, "two hosts": far, "two hosts, sent without asking": eager}
    times["two hosts by the model"] = predicted
    result["seconds_per_step"] = {name: round(value, 3) for name, value in times.items()}
    result["megabytes_received_by_the_model"] = round(scale_model.received(model, options.tokens, 2) / 1e6, 1)
    result["command"] = "python3 reference/namespaces.py --qbert QBERT --train sst2/train.tsv --dev DEV --out results/ranks-network.json"
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
