#!/usr/bin/env python3
"""Writes docs/results/speed.md from results/speed/*.json and results/bench-*.json; no number in it is typed by hand.

    python reference/render_speed.py
"""
import json
import pathlib

from bench.kinds import TITLES as KINDS

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKS = {"A": "A 1×32", "B": "B 1×128", "C": "C 1×384", "D": "D 32×128"}
OURS = "qbert 2,3"
MODELS = ["minilm-l6", "gte-small", "bert-base"]
PEERS = {"openvino-f32": "OpenVINO int8, f32", "openvino-bf16": "OpenVINO int8, bf16", "onnxruntime": "ONNX Runtime int8"}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def number(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def rank(value, order):
    return (order.index(value) if value in order else len(order), value)


def machines(found):
    """The results of each CPU: kinds in the order of KINDS, models in that of MODELS."""
    def key(result):
        cpu, model = result[1]["cpu"], result[1]["model"]["name"]
        return (*rank(cpu["kind"], KINDS), cpu["name"], *rank(model, MODELS))

    grouped = {}
    for name, result in sorted(found.items(), key=key):
        grouped.setdefault((result["cpu"]["kind"], result["cpu"]["name"]), {})[name] = result
    return grouped


def shape(result):
    model = result["model"]
    return f"{model['title']} ({model['layers']} × {model['hidden_size']})"


def inference(kind, cpu, results):
    """One table for a CPU: every model, work and number of threads beside the other programs; then our other widths."""
    any_result = next(iter(results.values()))
    yield f"## Inference: {kind}\n"
    yield f"{cpu}; features {', '.join(any_result['cpu']['features'])}; kernels `{any_result['kernels']}`.\n"
    yield f"| model | work, threads | qbert, 2/3 bits | {' | '.join(PEERS.values())} | qbert against the fastest of them |"
    yield "|---|---|---|" + "---|" * (len(PEERS) + 1)
    for result in results.values():
        for work in result["works"]:
            ms, fastest = work["ms"], work["fastest_peer"]
            cells = [number(ms[peer]) if peer in ms else result["absent"].get(peer, "not measured") for peer in PEERS]
            cells = [f"**{cell}**" if peer == fastest else cell for peer, cell in zip(PEERS, cells)]
            ratio = work["ratios"][fastest]
            yield (f"| {shape(result)} | {WORKS[work['work']]}, {work['threads']} | {number(ms[OURS])} | {' | '.join(cells)} "
                   f"| {ratio:.2f} ({1 / ratio:.2f} times as fast) |")
    yield ""
    for result in results.values():
        ratios = [max(work["ratios"].values()) for work in result["works"]]
        least = 1 / max(ratios)
        yield (f"- {result['model']['title']}: faster than the fastest of the others in {sum(ratio < 1 for ratio in ratios)} of "
               f"{len(ratios)} cases, {least:.2f} times as fast in the least favourable one.")
    yield ""
    for name, result in results.items():
        yield from widths(name, result)


def widths(name, result):
    works, sizes = result["works"], result["file_bytes"]
    ours = [column for column in works[0]["ms"] if column.startswith("qbert")]
    yield f"### {result['cpu']['kind']}, other widths: {result['model']['title']}\n"
    yield f"| work, threads | {' | '.join(bits(own) for own in ours)} |"
    yield "|---|" + "---|" * len(ours)
    for work in works:
        yield f"| {WORKS[work['work']]}, {work['threads']} | " + " | ".join(number(work["ms"][own]) for own in ours) + " |"
    yield ""
    narrow = [ratio for work in works for ratio in work.get("against_8_bits", {}).values()]
    if narrow:
        yield f"Models with 2-, 3- and 4-bit weights take {min(narrow):.2f} to {max(narrow):.2f} times as long as with 8-bit weights."
    columns = [own for own in ours if "first token" not in own]
    yield "File sizes in MB: " + ", ".join(f"{bits(own)} {sizes[own] / 1e6:.2f}" for own in columns) + "."
    used = ", ".join(f"{program} {version}" for program, version in result.get("versions", {}).items() if isinstance(version, str))
    made = result.get("versions", {}).get("models made with", {})
    if used:
        made = ", ".join(f"{program} {version}" for program, version in made.items())
        yield f"Measured: {used}. The others' models were made with {made}."
    if "note" in result:
        yield result["note"]
    yield f"\n`{result['command']}` (`results/speed/{name}`; system load before the start: {result['load_before']})\n"


def bits(column):
    """The title of one of our columns: `qbert 2,3, first token only` is 2/3 bits, first token only."""
    width, _, scope = column.removeprefix("qbert ").partition(", ")
    return f"{width.replace(',', '/')} bits" + (f", {scope}" if scope else "")


def training(name, found):
    works = found["works"] if "works" in found else []
    if not works:
        return
    what = found["what"].removesuffix(", in turn; medians").replace(" beside the PyTorch script for the same work", " against PyTorch")
    yield f"## {what}\n"
    yield f"`{found['command']}` (`results/{name}`)\n"
    if "cpu" in found:
        yield f"{found['cpu']}; features {', '.join(found['cpu_features'])}; kernels `{found['kernels']}`.\n"
    if "programs" in works[0]:
        yield from precisions(works)
        return
    yield "| work | qbert ms | PyTorch ms | ratio | target | memory ratio |"
    yield "|---|---|---|---|---|---|"
    for work in works:
        yield (f"| {work['work']}, {work['threads']} threads | {work['qbert']['ms']} | {work['pytorch']['ms']} "
               f"| {work['time_ratio']} | {work['target_ratio']} | {work['memory_ratio']} |")
    yield ""


def precisions(works):
    """Training with products in f32 and in bf16: ours in bf16 against the faster of PyTorch's."""
    names = list(works[0]["programs"])
    yield f"| work | {' | '.join(f'{name}, ms' for name in names)} | ratio | target | memory ratio |"
    yield "|---" * (len(names) + 4) + "|"
    for work in works:
        compared = work["compared"]
        times = [f"**{own['ms']}**" if name in compared else str(own["ms"]) for name, own in work["programs"].items()]
        yield (f"| {work['work']}, {work['threads']} threads | {' | '.join(times)} | {work['time_ratio']} "
               f"| {work['target_ratio']} | {work['memory_ratio']} |")
    yield ""


def main():
    text = ["# Speed, measured\n",
            "Median milliseconds. qbert and the other programs took turns in one run on the same two cores. Work is sequences × "
            "tokens; all tokens' hidden states are computed, except in the column *first token only*. OpenVINO computes what is not "
            "int8 in f32 or in bf16, which is its default where the CPU has it; the fastest of the others is in bold. "
            "`python reference/render_speed.py` renders this page from `results/speed/*.json` and `results/bench-*.json`; do not edit "
            "it by hand. [kernels.md](../reference/kernels.md#where-the-time-goes) shows where the time goes.\n"]
    found = {path.name: read(path) for path in sorted((ROOT / "results" / "speed").glob("*.json"))}
    for (kind, cpu), results in machines(found).items():
        text += inference(kind, cpu, results)
    for name in ("bench-hvp.json", "bench-train.json"):
        path = ROOT / "results" / name
        if path.exists():
            text += training(name, read(path))
    (ROOT / "docs" / "results" / "speed.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
