#!/usr/bin/env python3
"""Kills `qbert run` with SIGKILL at random moments, starts it again each time, and compares the final files with those of
an undisturbed run, byte for byte.

    cargo build --release
    python3 reference/kill_nine.py --kills 50
    python3 reference/kill_nine.py --kills 50 -- --model DIR --task sst2 --train train.tsv --dev dev.tsv --epochs 1

The arguments after `--` are those of the run, without --out; the default is a long run of examples/classify. States are
saved every --save-every seconds, so that most kills come between two saves. Needs nothing but Python.
"""
import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def default_run(epochs):
    example = ROOT / "examples"
    words = f"--task classify --text note --label condition --max-len 64 --epochs {epochs} --lr 2e-3 --batch 8 --qat-epochs {epochs // 2} "
    words += "--qat-lr 1e-3 --runs 40 --max-examples 32"
    data = ["--train", example / "classify/train.tsv", "--dev", example / "classify/dev.tsv"]
    return ["--model", str(example / "tiny-bert"), *map(str, data), *words.split()]


class Job:
    def __init__(self, options):
        self.options = options
        self.arguments = options.run or default_run(options.epochs)

    def start(self, home):
        # The threads change no byte, and are not part of the recorded command.
        flags = ["--out", "run", "--no-speed", "-q", "--save-every", str(self.options.save_every)]
        command = [self.options.qbert, "run", *self.arguments, *flags, "--threads", str(random.choice([1, 2]))]
        errors = open(home / "stderr.txt", "wb")
        return subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL, stderr=errors)

    def finish(self, home):
        begun = time.monotonic()
        if self.start(home).wait() != 0:
            sys.exit(f"the run failed:\n{(home / 'stderr.txt').read_text()}")
        return time.monotonic() - begun


def files(directory):
    """Every file of a run, but for the times that the stages took."""
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "times.jsonl"}


def saved_steps(state):
    """The step at which a training's state was saved."""
    with state.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["position"])["steps"]


def place(run):
    """Where a killed run is: the stage in progress, and the steps done and saved."""
    try:
        stages = json.loads((run / "run.json").read_text())["stages"]
    except FileNotFoundError:
        return "start", ""
    stage = next((name for name, entry in stages.items() if "results" not in entry), "between stages")
    folder = {"finetune": "finetuned", "quantize": "checkpoint"}.get(stage)
    state = run / folder / "resume.safetensors" if folder else None
    if state is None or not state.exists():
        return stage, "with a state" if (run / "analysis.safetensors").exists() else ""
    steps = sum(b'"step"' in line for line in (run / folder / "train.jsonl").open("rb"))
    return stage, f"step {steps}, saved at {saved_steps(state)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--qbert", default=str(ROOT / "target/release/qbert"), help="the program")
    parser.add_argument("--save-every", type=int, default=1, help="seconds between two saves of a state")
    parser.add_argument("--epochs", type=int, default=400, help="length of the default run; quantization takes half of it")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments")
    words = sys.argv[1:]
    own = words[words.index("--") + 1 :] if "--" in words else []
    options = parser.parse_args(words[: words.index("--")] if own else words)
    options.run = own
    random.seed(options.seed)
    job = Job(options)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "whole").mkdir()
        seconds = job.finish(scratch / "whole")
        expected = files(scratch / "whole/run")
        print(f"undisturbed: {seconds:.1f} s, {len(expected)} files")
        if seconds < 5 * options.save_every:
            sys.exit("the run is too short to cross several saves: take more epochs, or a larger model")
        kills, rounds, stages = 0, 0, collections.Counter()
        # Most of a run's time is between two kills, and a run that is done begins anew.
        patience = max(seconds / max(options.kills, 1), 2.5 * options.save_every)
        while kills < options.kills:
            rounds += 1
            home = scratch / f"round-{rounds}"
            home.mkdir()
            while kills < options.kills:
                process, wait = job.start(home), patience * random.uniform(0.1, 1.9)
                try:
                    if process.wait(timeout=wait) != 0:
                        sys.exit(f"the run failed:\n{(home / 'stderr.txt').read_text()}")
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                kills += 1
                stage, detail = place(home / "run")
                stages[stage] += 1
                print(f"kill {kills} after {wait:.1f} s: {stage} {detail}", flush=True)
            job.finish(home)
            found = files(home / "run")
            different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            if different:
                sys.exit(f"round {rounds}: these files differ: {', '.join(different)}")
        print(f"{kills} kills in {rounds} runs ({dict(stages)}): every file has the same bytes as undisturbed")


if __name__ == "__main__":
    main()
