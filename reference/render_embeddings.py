"""Writes docs/results/embeddings.md and its figure from results/embeddings/*.json, results/embeddings-f32.json and
results/embed-throughput.json; no number in it is typed by hand.

    python3 reference/render_embeddings.py [--check]
"""

import json
import sys

from pages import ROOT, finish

PAGE = ROOT / "docs" / "results" / "embeddings.md"
FIGURE = ROOT / "docs" / "results" / "embeddings.svg"
SETS = {
    "sts-b dev": "STS-B dev, Spearman",
    "sts16": "STS16, Spearman",
    "scifact": "SciFact, nDCG@10",
    "emotion": "Emotion, linear probe",
    "banking77": "Banking77, linear probe",
}
TITLES = {"minilm": "all-MiniLM-L6-v2", "gte-small": "gte-small", "mpnet": "all-mpnet-base-v2"}


def megabytes(row):
    return row["bytes"] / 1e6


def read(name):
    path = ROOT / "results" / name
    return json.loads(path.read_text()) if path.exists() else None


def table(name, rows):
    full = rows[0]["figures"]
    yield f"## {TITLES.get(name, name)}\n"
    yield "| model | MB | " + " | ".join(SETS.values()) + " |"
    yield "|---|---:|" + "---:|" * len(SETS)
    for row in rows:
        cells = []
        for key in SETS:
            value = row["figures"].get(key)
            if value is None:
                cells.append("–")
            elif row is rows[0] or key not in full:
                cells.append(f"{value:.2f}")
            else:
                cells.append(f"{value:.2f} ({value - full[key]:+.2f})")
        yield f"| {row['label']} | {megabytes(row):.2f} | " + " | ".join(cells) + " |"
    yield ""
    yield "Made by:\n"
    for row in rows:
        yield f"- {row['label']}: `{row['made_by']}`"
    yield ""


def figure(rows):
    """Size against what is lost, one panel per set, for the first network."""
    full, small = rows[0]["figures"], [row for row in rows[1:]]
    width, height, left, top = 190, 170, 46, 30
    panels = []
    low, high = 4.0, max(megabytes(row) for row in small) * 1.08
    for number, (key, title) in enumerate(SETS.items()):
        points = [(megabytes(row), row["figures"][key] - full[key], row["label"]) for row in small if key in row["figures"]]
        if not points:
            continue
        bottom = min(-1.5, min(drop for _, drop, _ in points)) - 0.2
        ceiling = max(0.6, max(drop for _, drop, _ in points) + 0.2)
        x = lambda size: left + (size - low) / (high - low) * (width - left - 10)
        y = lambda drop: top + (ceiling - drop) / (ceiling - bottom) * (height - top - 34)
        parts = [f'<text class="title" x="{left}" y="16">{title}</text>']
        apart = 4 if ceiling - bottom > 6 else 1
        ticks = [tick for tick in range(-40, 41, apart) if bottom <= tick <= ceiling]
        for tick in ticks:
            parts.append(f'<line class="{"zero" if tick == 0 else "grid"}" x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
            parts.append(f'<text class="tick" text-anchor="end" x="{left - 5}" y="{y(tick) + 3.5:.1f}">{f"{tick:+d}" if tick else "0"}</text>')
        for size in range(int(low), int(high) + 1, 4):
            parts.append(f'<text class="tick" text-anchor="middle" x="{x(size):.1f}" y="{height - 20}">{size}</text>')
        parts.append(f'<text class="tick" text-anchor="middle" x="{(left + width - 10) / 2:.1f}" y="{height - 6}">MB</text>')
        for size, drop, label in sorted(points):
            kind = "trained" if "trained" in label and "not trained" not in label else "plain"
            parts.append(f'<circle class="{kind}" cx="{x(size):.1f}" cy="{y(drop):.1f}" r="4"><title>{label}: {size:.2f} MB, {drop:+.2f}</title></circle>')
        across, down = number % 3, number // 3
        panels.append(f'<g transform="translate({across * width},{down * height})">{"".join(parts)}</g>')
    style = (
        "text{font:11px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:12px}.tick{fill:#666}.grid{stroke:#ddd}.zero{stroke:#888}"
        ".trained{fill:#1667b7}.plain{fill:#fff;stroke:#1667b7;stroke-width:1.5}svg{background:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.tick{fill:#aaa}.grid{stroke:#333}.zero{stroke:#777}.trained{fill:#6fb1f2}"
        ".plain{fill:#161616;stroke:#6fb1f2}svg{background:#161616}}"
    )
    total = height * ((len(panels) + 2) // 3)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * width} {total}" role="img" '
        f'aria-label="What models of different sizes lose against full precision"><style>{style}</style>{"".join(panels)}</svg>\n'
    )


def page(networks):
    yield "# Vectors: size against what is lost\n"
    yield (
        "Small models are trained without a label: the texts are those of [embed_data.py](../../reference/embed_data.py), and the teacher is the model in "
        "full precision. STS-B dev and SciFact's training queries chose the settings; the other figures were looked at only afterwards, with one "
        "exception: that 8-bit activations need clipping was seen on STS16 and Emotion. In brackets: points against full precision.\n"
    )
    for name, rows in networks.items():
        yield from table(name, rows)
        if name == "minilm" and len(rows) > 1:
            yield "![Size against what is lost](embeddings.svg)\n"
            yield "Filled: trained. Hollow: quantized without training.\n"
    split = read("embeddings/split.json")
    if split:
        yield "## Where six megabytes are worth most\n"
        yield f"{split['what']}\n"
        yield "| word table | bytes a word | bits a weight of the encoder | trained on | MB | STS-B dev, Spearman | SciFact's training queries, nDCG@10 |\n|---|---:|---:|---|---:|---:|---:|"
        for row in split["rows"]:
            yield f"| {row['table']} | {row['bytes_a_word']} | {row['encoder_bits']:.2f} | {row['texts']} | {megabytes(row):.2f} | {row['sts-b dev']:.2f} | {row['scifact train']:.2f} |"
        yield f"\n{split['verdict']}\n"
        yield f"Made by `{split['command']}`.\n"
    reranker = read("embeddings/reranker.json")
    if reranker:
        yield "## A reranker\n"
        yield f"MiniLM fine-tuned as a cross-encoder on STS Benchmark's training pairs, judged by its {reranker['pairs']:,} dev pairs.\n"
        yield "| model | MB | Pearson | Spearman |\n|---|---:|---:|---:|"
        first = reranker["rows"][0]
        for row in reranker["rows"]:
            cells = [f"{row[key]:.2f}" + ("" if row is first else f" ({row[key] - first[key]:+.2f})") for key in ["pearson", "spearman"]]
            yield f"| {row['label']} | {megabytes(row):.2f} | " + " | ".join(cells) + " |"
        yield "\nMade by:\n"
        yield from (f"- {row['label']}: `{row['made_by']}`" for row in reranker["rows"])
        yield ""
    compared = read("embeddings-f32.json")
    if compared:
        yield "## In f32, beside sentence-transformers\n"
        yield (
            f"The largest cosine distance of {compared['texts']} texts (sentence-transformers {compared['sentence_transformers']}), with every pooling, prompts "
            "and truncation to 128 numbers:\n"
        )
        yield "| model | settings | largest cosine distance |\n|---|---|---:|"
        for row in compared["rows"]:
            yield f"| {TITLES.get(row['model'], row['model'])} | {row['settings']} | {row['largest_cosine_distance']:.1e} |"
        yield f"\nMade by `{compared['command']}`.\n"
    speed = read("embed-throughput.json")
    if speed:
        yield "## Throughput\n"
        yield (
            f"{speed['texts']:,} real texts of many lengths, {speed['tokens'] / speed['texts']:.1f} tokens on average, {speed['threads']} threads "
            f"({speed['machine']}). Medians of {len(speed['rows'][0]['seconds'])} alternating rounds.\n"
        )
        yield "| program | batch | texts/s | against the fastest other |\n|---|---:|---:|---:|"
        for row in speed["rows"]:
            yield f"| {row['program']} | {row['batch'] or 'unpadded'} | {row['texts_per_second']:,.0f} | {row['times_the_fastest_peer']:.2f} |"
        yield f"\nMade by `{speed['command']}`.\n"


def main():
    networks = {}
    for name in TITLES:
        found = read(f"embeddings/{name}.json")
        # Without full precision there is nothing to compare with yet.
        if found and any(row["label"] == "f32" for row in found["rows"]):
            networks[name] = sorted(found["rows"], key=lambda row: (row["label"] != "f32", row["bytes"]))
    wanted = {PAGE: "\n".join(page(networks)).rstrip() + "\n"}
    if len(networks.get("minilm", [])) > 1:
        wanted[FIGURE] = figure(networks["minilm"])
    return finish(wanted)


if __name__ == "__main__":
    sys.exit(main())
