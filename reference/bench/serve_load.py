#!/usr/bin/env python3
"""`qbert serve` under load, beside a server of FastAPI and ONNX Runtime (int8): same model, same texts, same client.

    python3 reference/bench/serve_load.py --qbert qbert --model qbert-2-3.qbert --data DATA --python PYTHON \
        --onnx onnxruntime-int8.onnx --tokenizer tokenizer.json --out results/serve.json

DATA has `sst2/dev.tsv` (short texts) and `squad/dev-v1.1.json` (paragraphs); PYTHON has fastapi, uvicorn, onnxruntime and
tokenizers. Measured are the time from start to ready, memory, and 64 clients that ask again as soon as they are answered; then
requests at five times the rate that these got, whatever is answered. The client shares the machine with the server.
"""
import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
LONG_SHARE = 0.25  # of the texts are paragraphs


def requests_of(data, count):
    short = [line.split("\t")[0] for line in (data / "sst2/dev.tsv").read_text().splitlines()[1:]]
    articles = json.loads((data / "squad/dev-v1.1.json").read_text())["data"]
    long = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    dice = random.Random(1)
    texts = [dice.choice(long if dice.random() < LONG_SHARE else short) for _ in range(count)]
    bodies = [json.dumps({"inputs": text}).encode() for text in texts]
    head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    words = [len(text.split()) for text in texts]
    return [(head % len(body)).encode() + body for body in bodies], words


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


def measure(command, environment, port, options, requests, words, overload):
    begun = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, cwd=HERE)
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


def cpu():
    with open("/proc/cpuinfo", encoding="ascii") as info:
        name = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} CPUs"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--qbert", "--model", "--data", "--python", "--onnx", "--tokenizer", "--out"):
        parser.add_argument(flag, type=pathlib.Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--connections", type=int, default=800, help="of the overload")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    requests, words = requests_of(options.data, 4096)
    port = free_port()
    absolute = {key: str(value.absolute()) for key, value in vars(options).items() if isinstance(value, pathlib.Path)}
    own = [absolute["qbert"], "serve", absolute["model"], "--port", str(port), "--log-level", "warn"]
    ours = measure(own, {}, port, options, requests, statistics.mean(words), True)
    port = free_port()
    environment = {"MODEL": absolute["onnx"], "TOKENIZER": absolute["tokenizer"], "PORT": str(port), "WORKERS": str(os.cpu_count())}
    peer = measure([absolute["python"], "onnx_server.py"], environment, port, options, requests, statistics.mean(words), False)
    names = {key: value.name for key, value in vars(options).items() if isinstance(value, pathlib.Path)}
    command = "python3 reference/bench/serve_load.py " + " ".join(f"--{key} {value}" for key, value in names.items())
    ratio = ours["load"]["requests_per_second"] / peer["load"]["requests_per_second"]
    result = {"what": f"{options.clients} clients of /embed for {options.seconds:g} s, one text of mixed length per request; overload at 5 times that rate",
              "command": command, "machine": cpu(), "texts": {"words": {"mean": round(statistics.mean(words), 1), "median": statistics.median(words),
                                                                     "most": max(words)}},
              "qbert": ours, "fastapi-onnxruntime-int8": peer, "throughput_ratio": round(ratio, 2)}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
