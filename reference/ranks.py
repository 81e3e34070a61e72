#!/usr/bin/env python3
"""Runs qbert on several ranks with MPI and compares every file with what one process writes, byte for byte; then kills
single ranks with SIGKILL at random moments and continues with another number of ranks.

    cargo build --no-default-features --features mpi
    python3 reference/ranks.py --qbert target/debug/qbert --kills 10

Needs Open MPI's `mpirun` and nothing but Python. The model is examples/tiny-bert, the data examples/classify.
"""
import argparse
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/classify"
DATA = ["--task", "classify", "--text", "note", "--label", "condition", "--max-len", "64"]
FILES = ["--train", str(EXAMPLE / "train.tsv"), "--dev", str(EXAMPLE / "dev.tsv")]


def mpirun(ranks):
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    return command + (["--allow-run-as-root"] if os.geteuid() == 0 else [])


def jobs(epochs):
    """The verbs that ranks share, each with the words that follow it. They are done in this order in one directory.
    `run` trains in f32, the other trainings in bf16."""
    recipe = f"--epochs {epochs} --lr 2e-3 --batch 10 --accumulate 2".split()
    tuned = ["--model", str(ROOT / "examples/tiny-bert"), *DATA, *FILES, *recipe, "--precision", "bf16"]
    quantized = ["--model", "tuned", "--plan", "plan.toml", *DATA, *FILES, *recipe, "--precision", "bf16"]
    analyzed = ["--model", "tuned", *DATA, "--data", str(EXAMPLE / "train.tsv"), "--runs", "2", "--max-examples", "32", "--trace", "1"]
    whole = ["--model", str(ROOT / "examples/tiny-bert"), *DATA, *FILES, *recipe, "--precision", "f32", "--qat-epochs", str(max(epochs // 2, 1))]
    whole += ["--runs", "2", "--max-examples", "32", "--no-speed", "--no-figures"]
    return {
        "finetune": [*tuned, "--out", "tuned"],
        "quantize": [*quantized, "--out", "small"],
        "analyze": [*analyzed, "--out", "analysis"],
        "run": [*whole, "--out", "run"],
    }


def files(directory):
    """The hash of every file, but for the times that stages took."""
    found = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in ("times.jsonl", "stderr.txt"))
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def compare(found, expected, what):
    different = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    if different:
        sys.exit(f"{what}: these differ from what one process writes: {', '.join(different)}")


class Qbert:
    def __init__(self, program):
        self.program = str(pathlib.Path(program).resolve())

    def command(self, ranks, verb, words):
        # One thread each: there are more ranks than cores.
        return [*(mpirun(ranks) if ranks else []), self.program, verb, *words, "--threads", "1", "-q"]

    def start(self, home, ranks, verb, words):
        with open(home / "stderr.txt", "wb") as errors:
            return subprocess.Popen(self.command(ranks, verb, words), cwd=home, stdout=subprocess.DEVNULL, stderr=errors)

    def finish(self, home, ranks, verb, words):
        if self.start(home, ranks, verb, words).wait() != 0:
            sys.exit(f"{verb} on {ranks} ranks failed:\n{(home / 'stderr.txt').read_text()}")

    def prepare(self, home, tuned=None):
        home.mkdir()
        words = ["--model", str(ROOT / "examples/tiny-bert"), "--bits", "2", "--groups", "4", "--out", "plan.toml", "-q"]
        subprocess.run([self.program, "plan", *words], cwd=home, check=True, stdout=subprocess.DEVNULL)


def children(parent):
    """The processes that a process has started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(parent):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def same_bytes(qbert, scratch, epochs, most):
    all_jobs = jobs(epochs)
    alone = scratch / "alone"
    qbert.prepare(alone)
    for verb, words in all_jobs.items():
        qbert.finish(alone, None, verb, words)
    expected = files(alone)
    weights = [name for name in expected if name.endswith(("model.safetensors", "sensitivity.json"))]
    print("one process without MPI:", *(f"\n  {expected[name]}  {name}" for name in weights), flush=True)
    for ranks in range(1, most + 1):
        home = scratch / f"on-{ranks}"
        qbert.prepare(home)
        begun = time.monotonic()
        for verb, words in all_jobs.items():
            qbert.finish(home, ranks, verb, words)
        compare(files(home), expected, f"{ranks} ranks")
        print(f"{ranks} ranks: {', '.join(all_jobs)}: all {len(expected)} files the same, {time.monotonic() - begun:.1f} s", flush=True)


def kills(qbert, scratch, epochs, count):
    words = jobs(epochs)["run"] + ["--save-every", "1"]
    (scratch / "whole").mkdir()
    begun = time.monotonic()
    qbert.finish(scratch / "whole", 2, "run", words)
    seconds = time.monotonic() - begun
    expected = files(scratch / "whole")
    print(f"undisturbed on 2 ranks: {seconds:.1f} s", flush=True)
    done, rounds, ranks = 0, 0, 2
    while done < count:
        rounds += 1
        home = scratch / f"killed-{rounds}"
        home.mkdir()
        while True:
            ranks = random.choice([n for n in (2, 3, 4) if n != ranks])
            process = qbert.start(home, ranks, "run", words)
            wait = seconds * random.uniform(0.1, 0.9) if done < count else None
            try:
                if process.wait(timeout=wait) != 0:
                    sys.exit(f"the run failed:\n{(home / 'stderr.txt').read_text()}")
                break
            except subprocess.TimeoutExpired:
                victims = children(process.pid)
                if not victims:
                    continue
                os.kill(random.choice(victims), signal.SIGKILL)
                if process.wait(timeout=60) == 0:
                    # It was done in the meantime.
                    break
            done += 1
            said = (home / "stderr.txt").read_text()
            if "mpirun noticed" not in said and "MPI_ABORT" not in said:
                sys.exit(f"the job ended without a word about the killed rank:\n{said}")
            print(f"kill {done}: one of {ranks} ranks after {wait:.1f} s", flush=True)
        compare(files(home), expected, f"round {rounds}")
    print(f"{done} kills in {rounds} runs, each continued on another number of ranks: all files the same", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qbert", default=str(ROOT / "target/debug/qbert"), help="the program, built with the feature mpi")
    parser.add_argument("--ranks", type=int, default=4, help="compare 1 to this many ranks; 0 for none")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--kill-epochs", type=int, default=60, help="length of the run whose ranks are killed")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments")
    options = parser.parse_args()
    random.seed(options.seed)
    qbert = Qbert(options.qbert)
    with tempfile.TemporaryDirectory() as scratch:
        if options.ranks:
            same_bytes(qbert, pathlib.Path(scratch), options.epochs, options.ranks)
        if options.kills:
            kills(qbert, pathlib.Path(scratch), options.kill_epochs, options.kills)


if __name__ == "__main__":
    main()
