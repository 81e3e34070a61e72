#!/usr/bin/env python3
"""Measures `qbert bench infer` and the peers' inference script in turn, several times, and writes medians and ratios.

    python reference/bench/beside_openvino.py --qbert target/release/qbert --model "$(qbert fetch minilm)" \
        --peers PEERS --python PYTHON --out results/bench-infer.json

PEERS is the directory of infer_bench.py, PYTHON an interpreter with OpenVINO and ONNX Runtime. Every round measures each
of our widths and each peer once, in another order. Nothing else may run meanwhile; the load before the start is written
down. Works: A 1x32, B 1x128, C 1x384, D 32x128 tokens; all tokens' hidden states, no padding.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HEADLINE = "2,3"


def lines(command, cwd=None):
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def summed_up(measured):
    rows = {}
    for entry in measured:
        rows.setdefault((entry["work"], entry["threads"]), []).append(entry)
    return {key: {"ms": round(statistics.median(entry["ms"] for entry in own), 3),
                  "all_ms": [round(entry["ms"], 3) for entry in own],
                  "peak_rss_mib": max(entry.get("peak_rss_mib") or 0 for entry in own)} for key, own in rows.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qbert", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--peers", type=pathlib.Path, help="without it, ours alone")
    parser.add_argument("--python")
    parser.add_argument("--peer", nargs="*", default=["openvino", "ort"])
    parser.add_argument("--bits", nargs="+", default=[HEADLINE, "2", "3", "4", "8"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", default="ABCD")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each measurement")
    parser.add_argument("--openvino-model", type=pathlib.Path,
                        help="measure this model with openvino_infer.py instead of the peers' script")
    parser.add_argument("--what", default="MiniLM-L6")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    common = ["--work", options.work, "--budget", str(options.budget), "--threads", *map(str, options.threads)]
    ours = [str(options.qbert), "bench", "infer", "-q", "--json", "--model", str(options.model), *common]
    jobs = {f"qbert {bits}": ([*ours, "--bits", bits], None) for bits in options.bits}
    jobs[f"qbert {HEADLINE}, first token only"] = ([*ours, "--bits", HEADLINE, "--first-token-only"], None)
    if options.openvino_model:
        script = pathlib.Path(__file__).with_name("openvino_infer.py")
        jobs["openvino"] = ([options.python, str(script), str(options.openvino_model), *common], None)
    elif options.peers:
        for peer in options.peer:
            jobs[peer] = ([options.python, "infer_bench.py", *common, "--peer", peer], options.peers)
    measured, sizes = {name: [] for name in jobs}, {}
    for repeat in range(options.repeats):
        order = list(jobs)
        order = order[repeat % len(order):] + order[:repeat % len(order)]
        for name in order:
            found = lines(*jobs[name])
            measured[name] += found
            sizes.update({name: entry["file_bytes"] for entry in found if "file_bytes" in entry})
        print(f"round {repeat + 1} of {options.repeats} done", file=sys.stderr)
    results = {name: summed_up(entries) for name, entries in measured.items()}
    works = []
    for key in sorted(results[f"qbert {HEADLINE}"]):
        row = {"work": key[0], "threads": key[1], "ms": {name: found[key]["ms"] for name, found in results.items()},
               "all_ms": {name: found[key]["all_ms"] for name, found in results.items()}}
        mine = row["ms"][f"qbert {HEADLINE}"]
        row["ratios"] = {name: round(mine / ms, 3) for name, ms in row["ms"].items() if not name.startswith("qbert")}
        if "qbert 8" in row["ms"]:
            row["against_8_bits"] = {name: round(ms / row["ms"]["qbert 8"], 3)
                                     for name, ms in row["ms"].items() if name in ("qbert 2", "qbert 3", "qbert 4")}
        works.append(row)
        print(json.dumps({name: row[name] for name in ("work", "threads", "ms", "ratios")}))
    result = {
        "what": f"`qbert bench infer` beside the peers, {options.what}, in turn; medians of {options.repeats} rounds",
        "command": f"python reference/bench/beside_openvino.py --qbert target/release/qbert --model {options.model.name} "
                   f"{'--openvino-model openvino-int8.xml' if options.openvino_model else '--peers PEERS'} --python PYTHON --bits {' '.join(options.bits)} --repeats {options.repeats} "
                   f"--budget {options.budget} --out {options.out.name}",
        "load_before": round(load, 2),
        "file_bytes": sizes,
        "peak_rss_mib": {name: max(found[key]["peak_rss_mib"] for key in found) for name, found in results.items()},
        "works": works,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
