#!/usr/bin/env python3
"""Vectors of many real texts: qbert beside ONNX Runtime int8 and OpenVINO int8, from text to vectors.

    python reference/bench/embed_throughput.py --texts FILE --models DIR --qbert target/release/qbert --out results/embed-throughput.json

The texts have many lengths. The others get their best batching: texts sorted by length, padded to the longest of a batch, with the
batch size that is fastest on a sample; OpenVINO in f32 or bf16, whichever is faster, and with one stream or one per core. Their time is
tokenizing (the same Rust tokenizer), computing and pooling, without loading the model. qbert's is the whole command `qbert embed`, from
opening the model to the written file, and it reads the texts as they come. Rounds alternate; figures are medians.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kinds import cpu_name  # noqa: E402

BATCHES = [8, 16, 32, 64, 128]


class Peer:
    """A program that turns a padded batch into hidden states, on all cores."""

    def __init__(self, name, run):
        self.name, self.run = name, run

    def embed(self, tokenizer, texts, batch):
        encoded = tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda index: -len(encoded[index].ids))
        vectors = numpy.empty((len(texts), 384), numpy.float32)
        starts = range(0, len(order), batch)
        return self.run(encoded, [order[start : start + batch] for start in starts], vectors)


def padded(encoded, rows):
    longest = max(len(encoded[row].ids) for row in rows)
    ids = numpy.zeros((len(rows), longest), numpy.int64)
    mask = numpy.zeros_like(ids)
    for place, row in enumerate(rows):
        own = encoded[row].ids
        ids[place, : len(own)], mask[place, : len(own)] = own, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}


def pooled(hidden, mask):
    mask = mask.astype(numpy.float32)
    vectors = numpy.einsum("bth,bt->bh", hidden, mask) / mask.sum(1, keepdims=True)
    return vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)


def onnxruntime_peer(model, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [own.name for own in session.get_inputs()]

    def run(encoded, batches, vectors):
        for rows in batches:
            inputs = padded(encoded, rows)
            hidden = session.run(None, {name: inputs[name] for name in names})[0]
            vectors[rows] = pooled(hidden, inputs["attention_mask"])
        return vectors

    return Peer("onnxruntime int8", run)


def openvino_peer(model, threads, precision, streams):
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams, "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
                "INFERENCE_PRECISION_HINT": precision}  # fmt: skip
    compiled = openvino.Core().compile_model(str(model), "CPU", settings)
    names = [port.get_any_name() for port in compiled.inputs]

    def run(encoded, batches, vectors):
        def done(request, job):
            rows, mask = job
            vectors[rows] = pooled(request.get_output_tensor(0).data, mask)

        queue = openvino.AsyncInferQueue(compiled, max(streams, 1))
        queue.set_callback(done)
        for rows in batches:
            inputs = padded(encoded, rows)
            queue.start_async({name: inputs[name] for name in names}, (rows, inputs["attention_mask"]))
        queue.wait_all()
        return vectors

    return Peer(f"openvino int8, {precision}, {streams} stream{'s' if streams > 1 else ''}", run)


def timed(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True, help="a directory of make_peer_models.py")
    parser.add_argument("--packed", type=pathlib.Path, nargs="+", required=True, help="packed models of the same network")
    parser.add_argument("--qbert", default="target/release/qbert")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    lines = [line for line in options.texts.read_text().splitlines() if line.strip()]
    step = max(1, len(lines) // options.count)
    texts = lines[::step][: options.count]
    tokenizer = tokenizers.Tokenizer.from_file(str(options.models / "checkpoint" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    sample = texts[:: max(1, len(texts) // 4000)]
    peers = [onnxruntime_peer(options.models / "onnxruntime-int8.onnx", options.threads)]
    for precision in ["f32", "bf16"]:
        for streams in [1, options.threads]:
            peers.append(openvino_peer(options.models / "openvino-int8.xml", options.threads, precision, streams))
    tuned = {}
    for peer in peers:
        peer.embed(tokenizer, sample[:500], 32)
        speeds = {batch: timed(lambda: peer.embed(tokenizer, sample, batch))[0] for batch in BATCHES}
        batch = min(speeds, key=speeds.get)
        tuned[peer.name] = (peer, batch, speeds[batch])
        print(f"{peer.name}: batch {batch}, {len(sample) / speeds[batch]:.0f} texts/s on a sample", flush=True)
    # Of OpenVINO's settings the fastest.
    fastest = min((name for name in tuned if name.startswith("openvino")), key=lambda name: tuned[name][2])
    chosen = [name for name in tuned if not name.startswith("openvino") or name == fastest]
    seconds = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "texts.txt"
        path.write_text("\n".join(texts) + "\n")
        for _ in range(options.rounds):
            for name in chosen:
                peer, batch, _ = tuned[name]
                seconds[name].append(timed(lambda: peer.embed(tokenizer, texts, batch))[0])
            for packed in options.packed:
                out = pathlib.Path(work) / "vectors.npy"
                command = [options.qbert, "embed", str(packed), "--out", str(out), "--threads", str(options.threads), "-q"]
                with open(path, encoding="utf-8") as given:
                    took, _ = timed(lambda: subprocess.run(command, stdin=given, check=True))
                seconds.setdefault(f"qbert {packed.stem}", []).append(took)
            for name, all_of in seconds.items():
                print(f"{name}: {len(texts) / all_of[-1]:.0f} texts/s", flush=True)
    tokens = sum(len(own.ids) for own in tokenizer.encode_batch(texts))
    rows = []
    for name, all_of in seconds.items():
        median = statistics.median(all_of)
        rows.append({"program": name, "batch": tuned[name][1] if name in tuned else None, "seconds": [round(s, 2) for s in all_of],
                     "texts_per_second": round(len(texts) / median, 1)})  # fmt: skip
    best = max(row["texts_per_second"] for row in rows if not row["program"].startswith("qbert"))
    for row in rows:
        row["times_the_fastest_peer"] = round(row["texts_per_second"] / best, 2)
    result = {
        "command": "python reference/bench/embed_throughput.py --texts FILE --models DIR --packed MODEL … --out results/embed-throughput.json",
        "machine": cpu_name(),
        "threads": options.threads,
        "texts": len(texts),
        "tokens": tokens,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
