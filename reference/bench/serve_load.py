#!/usr/bin/env python3
"""`qbert serve` under load, beside a server of FastAPI and ONNX Runtime (int8) and the packaged server `infinity-emb`: same
model, same texts, same client.

    python3 reference/bench/serve_load.py --qbert qbert --model qbert-2-3.qbert --data DATA --python PYTHON \
        --onnx onnxruntime-int8.onnx --checkpoint minilm --infinity infinity_emb --out results/serve.json
    python3 reference/render_serve.py

DATA has `sst2/dev.tsv` (short texts) and `squad/dev-v1.1.json` (paragraphs); PYTHON has fastapi, uvicorn, onnxruntime and
tokenizers, and for its best speed uvloop, httptools and orjson. Without `--infinity` that server is left out. It needs an
environment of its own, because it wants old packages:

    pip install "infinity-emb[torch,optimum,server,logging]==0.0.78" "torch==2.6.0" "transformers<4.49" "optimum[onnxruntime]<2" \
        "datasets<4" "pyarrow<20" "pandas<2.3" "numpy<2"

Measured are the time from start to ready, memory, and 64 clients that ask again as soon as they are answered; then requests at
five times the rate that `qbert serve` got, whatever is answered. The client shares the machine with the server.
"""
import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from kinds import cpu_name

HERE = pathlib.Path(__file__).parent
LONG_SHARE = 0.25  # of the texts are paragraphs


def texts_of(data, count):
    short = [line.split("\t")[0] for line in (data / "sst2/dev.tsv").read_text().splitlines()[1:]]
    articles = json.loads((data / "squad/dev-v1.1.json").read_text())["data"]
    long = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    dice = random.Random(1)
    return [dice.choice(long if dice.random() < LONG_SHARE else short) for _ in range(count)]


def requests_of(texts, path, body):
    bodies = [json.dumps(body(text)).encode() for text in texts]
    head = "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return [(head % (path, len(own))).encode() + own for own in bodies]


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def rss_mb(pid):
    """Of a process and its children."""
    total = 0
    for line in subprocess.run(["ps", "-o", "rss=", "-p", str(pid), "--ppid", str(pid)], capture_output=True, text=True,
                               check=False).stdout.split():
        total += int(line)
    return round(total / 1024, 1)


def ready(port, process):
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
        time.sleep(0.001)


async def exchange(reader, writer, request):
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split(b":")[1])
    await reader.readexactly(length)
    return int(head[9:12])


async def closed_loop(port, requests, clients, seconds):
    """Every client asks again as soon as it is answered."""
    times, statuses, end = [], collections.Counter(), time.perf_counter() + seconds

    async def client(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        index = number
        while time.perf_counter() < end:
            begun = time.perf_counter()
            statuses[await exchange(reader, writer, requests[index % len(requests)])] += 1
            times.append(time.perf_counter() - begun)
            index += clients
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return times, statuses


async def open_loop(port, requests, connections, rate, seconds):
    """Requests at a rate, whatever is answered; a connection that still waits is passed over."""
    times, statuses, start = collections.defaultdict(list), collections.Counter(), time.perf_counter()
    sent = 0

    async def client():
        nonlocal sent
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            due = start + sent / rate
            index, sent = sent, sent + 1
            if due > start + seconds:
                break
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            begun = time.perf_counter()
            status = await exchange(reader, writer, requests[index % len(requests)])
            statuses[status] += 1
            times[status].append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return times, statuses, time.perf_counter() - start


def quantile(times, share):
    return round(sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1e3, 1) if times else None


def summary(times, statuses, seconds, words):
    return {"requests_per_second": round(statuses[200] / seconds, 1), "words_per_second": round(statuses[200] / seconds * words),
            "p50_ms": quantile(times, 0.5), "p90_ms": quantile(times, 0.9), "p99_ms": quantile(times, 0.99),
            "statuses": {str(key): value for key, value in sorted(statuses.items())}}


def measure(command, port, options, requests, words, environment=None, folder=HERE, overload=False):
    begun = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               cwd=folder)
    try:
        ready(port, process)
        result = {"start_to_ready_ms": round((time.perf_counter() - begun) * 1e3, 1)}
        time.sleep(0.5)
        result["idle_rss_mb"] = rss_mb(process.pid)
        asyncio.run(closed_loop(port, requests, options.clients, 1))
        times, statuses = asyncio.run(closed_loop(port, requests, options.clients, options.seconds))
        result["load"] = summary(times, statuses, options.seconds, words)
        result["loaded_rss_mb"] = rss_mb(process.pid)
        if overload:
            result["overload"] = overloaded(process, port, options, requests, words, result["load"]["requests_per_second"])
        return result
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def overloaded(process, port, options, requests, words, capacity):
    before = rss_mb(process.pid)

    async def watched():
        seen = []

        async def watch():
            while True:
                await asyncio.sleep(2)
                seen.append(rss_mb(process.pid))

        watching = asyncio.create_task(watch())
        found = await open_loop(port, requests, options.connections, 5 * capacity, options.seconds)
        watching.cancel()
        return found, seen

    (times, statuses, seconds), seen = asyncio.run(watched())
    alone, _ = asyncio.run(closed_loop(port, requests, 1, 2))
    return {"asked_per_second": round(sum(statuses.values()) / seconds, 1), **summary(times[200], statuses, seconds, words),
            "p99_of_refusals_ms": quantile(times[429], 0.99), "rss_mb": {"before": before, "half_way": seen[len(seen) // 2], "end": seen[-1]},
            "alone_right_after_p50_ms": quantile(alone, 0.5)}


def infinity(options, texts, words):
    """Infinity with the same ONNX file as the other peer. It takes a folder, and only as the current one finds the file in it."""
    requests = requests_of(texts, "/embeddings", lambda text: {"model": "minilm", "input": text})
    with tempfile.TemporaryDirectory() as folder:
        for path in options.checkpoint.iterdir():
            if path.suffix in (".json", ".txt"):
                shutil.copy(path, folder)
        shutil.copy(options.onnx, pathlib.Path(folder, "model_quantized.onnx"))
        port = free_port()
        command = [options.infinity, "v2", "--model-id", ".", "--served-model-name", "minilm", "--engine", "optimum", "--device", "cpu",
                   "--pooling-method", "mean", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error", *options.infinity_options.split()]
        return measure(command, port, options, requests, words, {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--qbert", "--model", "--data", "--python", "--onnx", "--checkpoint", "--out"):
        parser.add_argument(flag, type=pathlib.Path, required=True)
    parser.add_argument("--infinity", type=pathlib.Path, help="the program `infinity_emb`")
    parser.add_argument("--infinity-options", default="--batch-size 2 --no-lengths-via-tokenize",
                        help="the fastest of those tried on two cores: it pads its batches, so larger ones are slower")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--connections", type=int, default=800, help="of the overload")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    names = {key: value.name for key, value in vars(options).items() if isinstance(value, pathlib.Path)}
    texts = texts_of(options.data, 4096)
    counts = [len(text.split()) for text in texts]
    words, requests = statistics.mean(counts), requests_of(texts, "/embed", lambda text: {"inputs": text})
    result = {"what": f"{options.clients} clients that embed one text of mixed length per request, for {options.seconds:g} s; "
                      "overload of `qbert serve` at 5 times that rate",
              "command": "python3 reference/bench/serve_load.py " + " ".join(f"--{key} {value}" for key, value in names.items()),
              "machine": cpu_name(), "texts": {"words": {"mean": round(words, 1), "median": statistics.median(counts), "most": max(counts)}}}
    for key in names:
        setattr(options, key, getattr(options, key).absolute())
    port = free_port()
    command = [options.qbert, "serve", options.model, "--port", str(port), "--log-level", "warn"]
    result["qbert"] = measure(command, port, options, requests, words, overload=True)
    port = free_port()
    environment = {"MODEL": str(options.onnx), "TOKENIZER": str(options.checkpoint / "tokenizer.json"), "PORT": str(port),
                   "WORKERS": str(os.cpu_count())}
    result["fastapi-onnxruntime-int8"] = measure([options.python, "onnx_server.py"], port, options, requests, words, environment)
    if options.infinity:
        result["infinity-onnxruntime-int8"] = infinity(options, texts, words)
    rates = {name: own["load"]["requests_per_second"] for name, own in result.items() if isinstance(own, dict) and "load" in own}
    result["throughput_ratios"] = {name: round(rates["qbert"] / rate, 2) for name, rate in rates.items() if name != "qbert"}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
