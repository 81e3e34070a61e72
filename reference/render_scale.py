#!/usr/bin/env python3
"""Writes the measured figures of docs/guide/scale.md from results/; none of them is typed by hand.

    python3 reference/render_scale.py
    python3 reference/render_scale.py --check     # fails if the page is out of date; part of .ci/run
"""
import json
import sys

from pages import ROOT, finish, with_region

PAGE = ROOT / "docs/guide/scale.md"


def read(name):
    path = ROOT / "results" / name
    return json.loads(path.read_text()) if path.exists() else None


def ranks():
    speed, network = read("ranks-speed.json"), read("ranks-network.json")
    yield "| steps per second, SST-2, batches of 32 | one process, 2 threads | 2 ranks, 1 thread each | ratio |"
    yield "|---|---|---|---|"
    for precision in ["bf16", "f32"]:
        one, two = speed[precision]["steps_per_second"].values()
        yield f"| {precision} | {one} | {two} | {speed[precision]['ratio']:.2f} |"
    yield ""
    times = network["seconds_per_step"]
    yield (
        f"Two hosts of one machine (network namespaces) with {network['gbit_per_second']:g} Gbit/s and {network['delay_ms']:g} ms of delay in each direction: "
        f"the files are the same, and a step takes {times['two hosts']} s; with `OMPI_MCA_btl_tcp_eager_limit=8388608` {times['two hosts, sent without asking']} s, "
        f"where the model below says {times['two hosts by the model']} s ({network['megabytes_received_by_the_model']} MB received)."
    )


def parquet():
    found = read("parquet.json")
    long, rates = found["long_run"], found["texts_per_second"]
    yield (
        f"MiniLM at 4 bits on SST-2's phrases, two cores ({found['machine']}, AVX-512 VNNI): {rates['parquet']:,} rows per second, {found['parquet_to_lines']:.2f} of the "
        f"{rates['lines']:,} of plain lines. Over {long['rows']:,} rows the memory went from {long['memory_at_a_tenth']['VmRSS']:.0f} MB after a tenth to "
        f"{long['memory_at_the_end']['VmRSS']:.0f} MB at the end, and never above {long['most_memory']:.0f} MB: it rises and falls with the row group that is being written, of at most 32 MB."
    )


def cluster():
    found = read("cluster.json")
    if found is None:
        return
    assert all(not found[name]["problem"] for name in ["ray", "spark"] if name in found)
    yield "| the same rows, two cores, a wheel of the dev profile | seconds | |\n|---|---:|---|"
    yield f"| `qbert predict`, one process, two threads | {found['one process']['seconds']} | |"
    for name, title in {"ray": "Ray, two workers", "spark": "Spark, two workers"}.items():
        if name in found:
            yield f"| {title} | {found[name]['seconds']} | a worker killed; each of {found['rows']:,} rows there once, with the same answers |"


def main():
    text = PAGE.read_text()
    for name, lines in {"ranks": ranks, "parquet": parquet, "cluster": cluster}.items():
        text = with_region(text, name, "\n".join(lines()))
    return finish({PAGE: text})


if __name__ == "__main__":
    sys.exit(main())
