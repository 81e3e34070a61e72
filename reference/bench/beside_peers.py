#!/usr/bin/env python3
"""Measures `qbert bench infer`, OpenVINO int8 and ONNX Runtime int8 in turn, several times, and writes medians and ratios.

    python reference/bench/beside_peers.py --qbert target/release/qbert --models MODELS --python PYTHON --out results/speed

MODELS is what make_peer_models.py made, PYTHON an interpreter with OpenVINO, ONNX Runtime and NumPy. For each model (all of
MODELS, or those named with --only) a file MODEL.KIND-MAKER.json is written, named after the kind of CPU (kinds.py). Works: A 1x32,
B 1x128, C 1x384, D 32x128 tokens; all tokens' hidden states, no padding. In every round each program runs once, in another
order. Nothing else may run meanwhile; the load before the start is written down.

Finished measurements are kept in MODELS: the same command continues after an interruption. Virtual machines may offer AMX
but hide the CPUID leaf that describes its tiles; oneDNN, and OpenVINO with it, dies of that. --amx-shim names a C file that
answers the leaf; it is compiled and preloaded for the other programs on such machines.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from kinds import kind_of, maker_of

HEADLINE = "qbert 2,3"
FIRST_TOKEN = "qbert 2,3, first token only"
WIDTHS = {"minilm-l6": ["2,3", "2", "3", "4", "8"]}
USUAL_WIDTHS = ["2,3", "8"]
TITLES = {"minilm-l6": "MiniLM-L6", "gte-small": "gte-small", "mpnet": "all-mpnet-base-v2", "bert-base": "BERT-base's shape, random weights"}
PEERS = {"openvino-f32": "openvino-int8.xml", "openvino-bf16": "openvino-int8.xml", "onnxruntime": "onnxruntime-int8.onnx"}


def json_lines(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        shown = " ".join(map(str, command))
        hint = "\nOpenVINO needs --amx-shim in some virtual machines with AMX" if done.returncode == -4 else ""
        raise SystemExit(f"{shown}\nended with {done.returncode}: {done.stderr.strip()[-2000:]}{hint}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def linux_flags():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1] for line in text.splitlines() if line.startswith("flags")), "").split())


def peers_environment(options):
    """The environment of the other programs: with the shim where the CPU has AMX and lets CPUID be answered."""
    environment = dict(os.environ)
    if options.amx_shim and {"amx_int8", "cpuid_fault"} <= linux_flags():
        library = (options.models / "amx_shim.so").resolve()
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, options.amx_shim], check=True)
        environment["LD_PRELOAD"] = str(library)
    return environment


class Rounds:
    """The measurements of one model: finished ones are kept in a file until the result is written."""

    def __init__(self, path, settings):
        self.path, self.settings, self.done, self.load = path, settings, {}, None
        if path.exists():
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]  # a kill may leave a part of a line
            head, *lines = [json.loads(line) for line in whole.splitlines()] or [{}]
            path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *lines) if line), encoding="utf-8")
            if head and head["settings"] != settings:
                raise SystemExit(f"{path}: an unfinished measurement with other settings; give the same, or delete the file")
            self.load = head.get("load")
            self.done = {(line["round"], line["name"]): line["found"] for line in lines}

    def begin(self):
        if self.load is None:
            self.load = round(os.getloadavg()[0], 2)
            self.append({"settings": self.settings, "load": self.load})

    def append(self, line):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, number, name, found):
        self.done[number, name] = found
        self.append({"round": number, "name": name, "found": found})

    def of(self, name):
        return [entry for (_, own), found in sorted(self.done.items()) if own == name for entry in found]


def packed_models(options, folder, widths):
    """The packed models, made anew unless a measurement of them goes on."""
    files = {}
    for bits in widths:
        files[bits] = file = folder / f"qbert-{bits.replace(',', '-')}.qbert"
        if not file.exists() or not (folder / "rounds.jsonl").exists():
            json_lines([options.qbert, "bench", "infer", "-q", "--json", "--model", folder / "checkpoint", "--bits", bits,
                        "--save", file, "--work", "A", "--threads", "1", "--budget", "0", "--runs", "1"])
    return files


def summed_up(entries):
    """Median of the rounds for each work and number of threads."""
    rows = {}
    for entry in entries:
        if "work" in entry:
            rows.setdefault((entry["work"], entry["threads"]), []).append(entry["ms"])
    return {key: {"ms": round(statistics.median(own), 3), "all_ms": own} for key, own in rows.items()}


def work_row(key, results):
    row = {"work": key[0], "threads": key[1], "ms": {name: found[key]["ms"] for name, found in results.items()},
           "all_ms": {name: found[key]["all_ms"] for name, found in results.items()}}
    ms = row["ms"]
    row["ratios"] = {name: round(ms[HEADLINE] / own, 3) for name, own in ms.items() if name in PEERS}
    if row["ratios"]:
        row["fastest_peer"] = max(row["ratios"], key=row["ratios"].get)
    narrow = [name for name in ms if name in ("qbert 2", "qbert 3", "qbert 4")]
    if narrow:
        row["against_8_bits"] = {name: round(ms[name] / ms["qbert 8"], 3) for name in narrow}
    return row


def measure(options, name):
    folder = options.models / name
    widths = WIDTHS.get(name, USUAL_WIDTHS)
    settings = {"work": options.work, "threads": options.threads, "budget": options.budget, "runs": options.runs,
                "rounds": options.rounds, "peers": options.peer,
                "qbert": hashlib.sha256(options.qbert.read_bytes()).hexdigest()}
    rounds = Rounds(folder / "rounds.jsonl", settings)
    files = packed_models(options, folder, widths)
    common = ["--work", options.work, "--budget", str(options.budget), "--runs", str(options.runs),
              "--threads", *map(str, options.threads)]
    ours = [options.qbert, "bench", "infer", "-q", "--json", *common, "--model"]
    jobs = {f"qbert {bits}": [*ours, file] for bits, file in files.items()}
    if name in WIDTHS:
        jobs[FIRST_TOKEN] = [*ours, files["2,3"], "--first-token-only"]
    script = pathlib.Path(__file__).with_name("peer_infer.py")
    jobs.update({peer: [options.python, script, peer, folder / PEERS[peer], *common] for peer in options.peer})
    environment = peers_environment(options)
    rounds.begin()
    if rounds.load > 0.5:
        print(f"warning: the load was {rounds.load} before the start; figures of a busy machine mean little", file=sys.stderr)
    order, begun = list(jobs), time.monotonic()
    for number in range(options.rounds):
        for job in order[number % len(order):] + order[:number % len(order)]:
            if (number, job) not in rounds.done:
                rounds.add(number, job, json_lines(jobs[job], environment if job in PEERS else None))
        minutes = (time.monotonic() - begun) / 60
        print(f"{name}: round {number + 1} of {options.rounds} done after {minutes:.1f} minutes", file=sys.stderr)
    return write(options, name, jobs, rounds)


def write(options, name, jobs, rounds):
    found = {job: rounds.of(job) for job in jobs}
    absent = {job: entries[0]["absent"] for job, entries in found.items() if "absent" in entries[0]}
    results = {job: summed_up(entries) for job, entries in found.items() if job not in absent}
    first = found[HEADLINE][0]
    cpu = {"name": first["cpu"], "features": first["cpu_features"], "count": os.cpu_count()}
    slug, cpu["kind"] = kind_of(cpu["features"])
    out = options.out / f"{name}.{slug}-{maker_of(cpu['name'])}.json"
    config = json.loads((options.models / name / "checkpoint" / "config.json").read_text(encoding="utf-8"))
    made = json.loads((options.models / name / "made.json").read_text(encoding="utf-8"))
    version = subprocess.run([options.qbert, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    measured_with = {job.split("-")[0]: found[job][0]["version"] for job in options.peer}
    result = {
        "what": f"`qbert bench infer` beside OpenVINO int8 and ONNX Runtime int8, in turn; medians of {options.rounds} rounds",
        "model": {"name": name, "title": TITLES.get(name, name), "layers": config["num_hidden_layers"],
                  "hidden_size": config["hidden_size"]},
        "command": f"python reference/bench/beside_peers.py --qbert target/release/qbert --models MODELS --python PYTHON "
                   f"--only {name} --rounds {options.rounds} --budget {options.budget} --runs {options.runs} --out results/speed",
        "cpu": cpu,
        "kernels": first["kernels"],
        "versions": {"qbert": version, **measured_with, "models made with": made},
        "load_before": rounds.load,
        "absent": absent,
        "file_bytes": {job: entries[0]["file_bytes"] for job, entries in found.items() if "file_bytes" in entries[0]},
        "peak_rss_mib": {job: max(entry.get("peak_rss_mib") or 0 for entry in found[job]) for job in results},
        "works": [work_row(key, results) for key in sorted(results[HEADLINE])],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rounds.path.unlink()
    for row in result["works"]:
        print(json.dumps({part: row[part] for part in ("work", "threads", "ms", "ratios")}))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qbert", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--python", required=True, help="interpreter with OpenVINO, ONNX Runtime and NumPy")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="some of the models")
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", default="ABCD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.7, help="seconds for each measurement")
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement, at least")
    parser.add_argument("--amx-shim", type=pathlib.Path, help="see above")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.qbert = options.qbert.resolve()
    made = {made.parent.name for made in options.models.glob("*/made.json")}
    names = options.only or sorted(made, key=lambda name: (*TITLES, name).index(name))
    unknown = [name for name in names if name not in made]
    if unknown or not names:
        raise SystemExit(f"{options.models}: no model {', '.join(unknown)}; make_peer_models.py makes them")
    try:
        for name in names:
            print(measure(options, name))
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
