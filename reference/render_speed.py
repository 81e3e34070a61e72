#!/usr/bin/env python3
"""Writes docs/results/speed.md from results/bench-*.json; no number in it is typed by hand.

    python reference/render_speed.py
"""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKS = {"A": "A 1×32", "B": "B 1×128", "C": "C 1×384", "D": "D 32×128"}
OURS = "qbert 2,3"


def number(value):
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def inference(name, found):
    yield f"## {found['what'].split(', in turn')[0].replace('`qbert bench infer` beside the peers, ', 'Inference: ')}\n"
    yield f"`{found['command']}` (`results/{name}`; system load before the start: {found['load_before']})\n"
    others = [peer for peer in found["works"][0]["ms"] if peer != OURS]
    yield f"| work, threads | qbert, 2/3 bits | {' | '.join(others)} | qbert 2/3 against OpenVINO int8 |"
    yield "|---|---|" + "---|" * (len(others) + 1)
    for work in found["works"]:
        ms = work["ms"]
        yield (f"| {WORKS[work['work']]}, {work['threads']} | {number(ms[OURS])} | "
               + " | ".join(number(ms[peer]) for peer in others)
               + f" | {work['ratios']['openvino']:.2f} ({1 / work['ratios']['openvino']:.2f} times as fast) |")
    yield ""
    wins = sum(work["ratios"]["openvino"] < 1 for work in found["works"])
    yield f"Faster than OpenVINO int8 in {wins} of {len(found['works'])} cases."
    narrow = [ratio for work in found["works"] for ratio in work.get("against_8_bits", {}).values()]
    if narrow:
        yield (f"Models with 2-, 3- and 4-bit weights take {min(narrow):.2f} to {max(narrow):.2f} times as long as with 8-bit weights.")
    sizes = found["file_bytes"]
    yield "File sizes in MB: " + ", ".join(f"{bits} {size / 1e6:.2f}" for bits, size in sizes.items()) + ".\n"


def training(name, found):
    works = found["works"] if "works" in found else []
    if not works:
        return
    what = found["what"].removesuffix(", in turn; medians").replace(" beside the PyTorch script for the same work", " against PyTorch")
    yield f"## {what}\n"
    yield f"`{found['command']}` (`results/{name}`)\n"
    yield "| work | qbert ms | PyTorch ms | ratio | target | memory ratio |"
    yield "|---|---|---|---|---|---|"
    for work in works:
        yield (f"| {work['work']}, {work['threads']} threads | {work['qbert']['ms']} | {work['pytorch']['ms']} "
               f"| {work['time_ratio']} | {work['target_ratio']} | {work['memory_ratio']} |")
    yield ""


def main():
    text = ["# Speed, measured\n",
            "Median milliseconds. qbert and the other programs took turns in one run on the same two cores. Work is sequences × "
            "tokens; all tokens' hidden states are computed, except in the column *first token only*. "
            "`python reference/render_speed.py` renders this page from `results/bench-*.json`; do not edit it by hand. "
            "[kernels.md](../reference/kernels.md#where-the-time-goes) shows where the time goes.\n"]
    for name, section in (("bench-infer.json", inference), ("bench-infer-base.json", inference),
                          ("bench-hvp.json", training), ("bench-train.json", training)):
        path = ROOT / "results" / name
        if path.exists():
            text += section(name, json.loads(path.read_text(encoding="utf-8")))
    (ROOT / "docs" / "results" / "speed.md").write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
