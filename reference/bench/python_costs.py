"""What the Python package costs: a call compared with the same call in Rust, the import, memory, threads.

    cargo build --release -p qbert-python --example call_speed
    PYTHON reference/bench/python_costs.py --model minilm-2-3.qbert --rust target/release/examples/call_speed \
        --wheel target/wheels/qbert-*.whl --peers PEER_PYTHON --onnx onnxruntime-int8.onnx --checkpoint DIR --out results/python.json

PYTHON is an environment with the wheel and numpy. PEER_PYTHON has onnxruntime, tokenizers and sentence-transformers; without
it the others are left out. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# 30 words of one piece each, so 32 tokens with the special ones.
TEXT = " ".join(["the old man and the young woman saw a big red house near the long river"] * 2).rsplit(" ", 2)[0]
RUNS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "rust", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("wheel", "peers", "onnx", "checkpoint"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--many", type=int, default=100_000, help="calls to watch the memory over")
    options = parser.parse_args()
    import qbert

    model = qbert.load(options.model)
    tokens = len(model.hidden_states(TEXT)["ids"])
    results: dict[str, object] = {
        "what": "costs of the Python package: a call compared with Rust, import, memory, threads",
        "command": " ".join(["python reference/bench/python_costs.py", *map(os.path.basename, sys.argv[1:])]),
        "machine": machine(),
        "kernels": model.kernels,
        "python": sys.version.split()[0],
        "model": os.path.basename(options.model),
        "tokens": tokens,
        "call": [overhead(options, threads) for threads in sorted({1, os.cpu_count() or 1})],
        "threads": scaling(options.model),
        "memory": memory(options.model, options.many),
    }
    if options.wheel:
        results["wheel_bytes"] = os.path.getsize(options.wheel)
    results["start"] = starts(options)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
        file.write("\n")
    print(json.dumps(results, indent=2))


def machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    return f"{name}, {os.cpu_count()} CPUs"


def overhead(options: argparse.Namespace, threads: int) -> dict[str, object]:
    """Microseconds of ``embed`` for one text, Python and Rust in turn."""
    import qbert

    model = qbert.load(options.model, threads=threads)
    python, rust = [], []
    for _ in range(RUNS):
        words = [options.rust, options.model, str(threads), str(options.calls), TEXT]
        rust.append(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]))
        for _ in range(options.calls // 10 + 1):
            model.embed(TEXT)
        begun = time.perf_counter()
        for _ in range(options.calls):
            model.embed(TEXT)
        python.append((time.perf_counter() - begun) * 1e6 / options.calls)
    slow, fast = statistics.median(python), statistics.median(rust)
    return {
        "call": "embed of one text",
        "threads": threads,
        "python_us": round(slow, 1),
        "rust_us": round(fast, 1),
        "overhead_percent": round(100 * (slow / fast - 1), 2),
        "runs": {"python_us": [round(x, 1) for x in python], "rust_us": [round(x, 1) for x in rust]},
    }


def scaling(path: str) -> dict[str, object]:
    """Texts per second with one and with sixteen Python threads on one model that uses one thread per call."""
    from concurrent.futures import ThreadPoolExecutor

    import qbert

    model = qbert.load(path, threads=1)
    expected = model.embed(TEXT).tobytes()

    def ask(count: int) -> bool:
        return all(model.embed(TEXT).tobytes() == expected for _ in range(count))

    ask(200)
    rates, same = {}, True
    for threads in (1, 16):
        best = 0.0
        for _ in range(3):
            begun = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                same &= all(pool.map(ask, [3200 // threads] * threads))
            best = max(best, 3200 / (time.perf_counter() - begun))
        rates[threads] = best
    return {
        "texts_per_second": {str(threads): round(rate) for threads, rate in rates.items()},
        "times_as_many": round(rates[16] / rates[1], 2),
        "cores": os.cpu_count(),
        "same_bits": same,
    }


def resident() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(path: str, calls: int) -> dict[str, object]:
    """Bytes in use along many calls."""
    import qbert

    model = qbert.load(path)
    seen = []
    for number in range(calls + 1):
        model.embed("a film") if number % 2 else model.hidden_states("a film")
        if number % (calls // 10) == 0:
            seen.append(round(resident() / 1e6, 2))
    return {"calls": calls, "resident_mb": seen, "growth_mb_after_the_first_tenth": round(seen[-1] - seen[1], 2)}


QBERT = """
import time; begun = time.perf_counter()
import qbert
imported = time.perf_counter()
model = qbert.load({model!r})
{ask}
"""
ONNX = """
import time; begun = time.perf_counter()
import onnxruntime, tokenizers
imported = time.perf_counter()
session = onnxruntime.InferenceSession({onnx!r})
tokens = tokenizers.Tokenizer.from_file({checkpoint!r} + "/tokenizer.json").encode({text!r})
import numpy
given = {{"input_ids": tokens.ids, "attention_mask": tokens.attention_mask, "token_type_ids": tokens.type_ids}}
names = [one.name for one in session.get_inputs()]
session.run(None, {{name: numpy.array([given[name]], dtype=numpy.int64) for name in names}})
"""
SENTENCE = """
import time; begun = time.perf_counter()
import sentence_transformers
imported = time.perf_counter()
model = sentence_transformers.SentenceTransformer({checkpoint!r}, device="cpu")
model.encode({text!r})
"""
REPORT = """
answered = time.perf_counter()
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("RESULT", imported - begun, answered - begun, lines["VmRSS"].split()[0], lines["VmHWM"].split()[0])
"""


def starts(options: argparse.Namespace) -> list[dict[str, object]]:
    """Import, first answer and memory of fresh processes."""
    values = {"model": options.model, "onnx": options.onnx, "checkpoint": options.checkpoint, "text": TEXT}
    import qbert

    answer = "model({text!r})" if qbert.load(options.model).head else "model.embed({text!r})"
    programs = [
        ("nothing but Python", sys.executable, "import time; begun = imported = time.perf_counter()"),
        ("qbert, embedding (numpy loaded)", sys.executable, QBERT.replace("{ask}", "model.embed({text!r})")),
    ]
    if answer.startswith("model("):
        programs.insert(1, ("qbert, label", sys.executable, QBERT.replace("{ask}", answer)))
    if options.peers and options.onnx and options.checkpoint:
        programs.append(("ONNX Runtime with tokenizers", options.peers, ONNX))
        programs.append(("sentence-transformers", options.peers, SENTENCE))
    rows: list[dict[str, object]] = []
    for name, python, program in programs:
        code = program.format(**values) + REPORT
        measured = []
        for _ in range(5):
            done = subprocess.run([python, "-c", code], capture_output=True, text=True)
            line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
            if line is None:
                print(f"{name}: {done.stderr.splitlines()[-1:]}", file=sys.stderr)
                break
            measured.append([float(number) for number in line.split()[1:]])
        if measured:
            imported, answered, now, peak = (statistics.median(column) for column in zip(*measured))
            rows.append({
                "program": name,
                "import_ms": round(1000 * imported, 1),
                "first_answer_ms": round(1000 * answered, 1),
                "resident_mb": round(now * 1024 / 1e6, 1),
                "peak_mb": round(peak * 1024 / 1e6, 1),
            })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
