"""Measures `qbert predict` on Parquet files beside plain lines: throughput in alternating rounds, and memory over a long run.

    python3 reference/bench/parquet.py --qbert target/release/qbert --model model.qbert --texts texts.txt --out results/parquet.json

Needs pyarrow. Nothing else should run meanwhile.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import pyarrow
import pyarrow.parquet

from kinds import cpu_name


def memory(pid):
    """The resident memory of a process in MB, and the part of it that is not mapped files."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {name: round(value * 1024 / 1e6, 1) for name, value in found.items()} or None


def measure(command, stdin=None, every=None):
    """Seconds that a command takes, and its memory every so many seconds."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = []
    while process.poll() is None:
        if every and (now := memory(process.pid)):
            samples.append({"seconds": round(time.perf_counter() - begun, 1), **now})
        time.sleep(every or 0.002)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - begun, samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qbert", default="target/release/qbert")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="a text per line, repeated as needed")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the long run")
    parser.add_argument("--rows-of-a-round", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name, count in {"round": options.rows_of_a_round, "long": options.rows}.items():
            texts = [lines[row % len(lines)] for row in range(count)]
            (scratch / f"{name}.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
            pyarrow.parquet.write_table(pyarrow.table({"id": range(count), "text": texts}), scratch / f"{name}.parquet")
        plain = [options.qbert, "predict", options.model, "--json", "-q"]
        rows = lambda name: [options.qbert, "predict", options.model, "--data", str(scratch / f"{name}.parquet"), "--out", str(scratch / "out.parquet"), "-q"]
        seconds = {"lines": [], "parquet": []}
        for _ in range(options.rounds):
            with open(scratch / "round.txt", "rb") as stdin:
                seconds["lines"].append(measure(plain, stdin)[0])
            seconds["parquet"].append(measure(rows("round"))[0])
        medians = {name: statistics.median(all) for name, all in seconds.items()}
        long, samples = measure(rows("long"), every=1.0)
        written = pyarrow.parquet.ParquetFile(scratch / "out.parquet").metadata.num_rows
    # The memory from the first tenth of the run on, when the model and the first row groups are there.
    steady = samples[len(samples) // 10 :]
    result = {
        "machine": cpu_name(),
        "rows_of_a_round": options.rows_of_a_round,
        "seconds": {name: [round(value, 3) for value in all] for name, all in seconds.items()},
        "texts_per_second": {name: round(options.rows_of_a_round / value) for name, value in medians.items()},
        "parquet_to_lines": round(medians["lines"] / medians["parquet"], 4),
        "long_run": {
            "rows": written,
            "seconds": round(long, 1),
            "texts_per_second": round(written / long),
            "memory_at_a_tenth": steady[0],
            "memory_at_the_end": steady[-1],
            "most_memory": max(sample["VmRSS"] for sample in samples),
        },
        "command": "python3 reference/bench/parquet.py --model MODEL --texts TEXTS --out results/parquet.json",
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
