#!/usr/bin/env python3
"""Writes the figures in docs/guide/serve.md from results/serve.json; none of them is typed by hand.

    python3 reference/render_serve.py
    python3 reference/render_serve.py --check     # fails if the page is out of date; part of .ci/run
"""
import json
import sys

from pages import ROOT, finish, with_region

PAGE = ROOT / "docs/guide/serve.md"
RESULT = ROOT / "results/serve.json"
TITLES = {"qbert": "`qbert serve`", "fastapi-onnxruntime-int8": "FastAPI, ONNX Runtime int8, one process per core",
          "infinity-onnxruntime-int8": "infinity-emb, ONNX Runtime int8"}


def duration(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def rendered(result):
    servers = {name: result[name] for name in TITLES if name in result}
    yield "| | requests per second | median | 99th percentile | memory, idle and loaded | start to ready |"
    yield "|---|---|---|---|---|---|"
    for name, own in servers.items():
        load = own["load"]
        yield (f"| {TITLES[name]} | {load['requests_per_second']:.0f} | {duration(load['p50_ms'])} | {duration(load['p99_ms'])} "
               f"| {own['idle_rss_mb']:.0f} and {own['loaded_rss_mb']:.0f} MB | {duration(own['start_to_ready_ms'])} |")
    yield ""
    ratios = " and ".join(f"{ratio:.1f} times the throughput of {TITLES[name].split(',')[0]}"
                          for name, ratio in result["throughput_ratios"].items())
    yield f"That is {ratios}."
    yield ""
    own = result["qbert"]["overload"]
    others = sorted(set(own["statuses"]) - {"200", "429"})
    assert not others, f"statuses besides 200 and 429 under overload: {others}"
    memory = own["rss_mb"]
    yield (f"Asked for {own['asked_per_second']:.0f} requests per second, about five times as many as it can answer, `qbert serve` answered "
           f"{own['requests_per_second']:.0f} of them, with a median of {duration(own['p50_ms'])} and a 99th percentile of {duration(own['p99_ms'])}, and "
           f"refused the others within {duration(own['p99_of_refusals_ms'])} (99th percentile). Memory was {memory['half_way']:.0f} MB "
           f"half way and {memory['end']:.0f} MB at the end, and a single client right after it was answered in "
           f"{duration(own['alone_right_after_p50_ms'])} (median).")


def main():
    lines = "\n".join(rendered(json.loads(RESULT.read_text(encoding="utf-8"))))
    return finish({PAGE: with_region(PAGE.read_text(encoding="utf-8"), "serve.json", lines)})


if __name__ == "__main__":
    sys.exit(main())
