#!/usr/bin/env python3
"""Times one model of another program, in the works, flags and fields of `qbert bench infer --json`.

    python reference/bench/peer_infer.py openvino-bf16 openvino-int8.xml --threads 1 2 --budget 1

`make_peer_models.py` makes the models, `beside_peers.py` runs this script in turn with qbert. OpenVINO computes what is not
int8 in f32 or in bf16. Where a CPU cannot do bf16, one line says so instead of a measurement.
"""
import argparse
import json
import statistics
import time

import numpy

WORKS = {"A": (1, 32), "B": (1, 128), "C": (1, 384), "D": (32, 128)}
WARM = 2  # runs before the first measured one; one is enough if it takes the whole budget


def inputs_of(work):
    ids = numpy.random.default_rng(0).integers(1000, 29000, WORKS[work], dtype=numpy.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    return {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}


class OpenVino:
    def __init__(self, precision):
        import openvino
        self.core, self.precision, self.version = openvino.Core(), precision, openvino.__version__.split("-")[0]

    def absent(self):
        able = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return None if self.precision == "f32" or self.precision.upper() in able else "not on this CPU"

    def load(self, model, threads):
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": self.precision, "ENABLE_CPU_PINNING": "NO"}
        request = self.core.compile_model(model, "CPU", settings).create_infer_request()
        names = [port.get_any_name() for port in request.model_inputs]
        return lambda inputs: request.infer({name: inputs[name] for name in names})[0]


class OnnxRuntime:
    def __init__(self):
        import onnxruntime
        self.program, self.version = onnxruntime, onnxruntime.__version__

    def absent(self):
        return None

    def load(self, model, threads):
        options = self.program.SessionOptions()
        options.intra_op_num_threads = threads
        session = self.program.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [own.name for own in session.get_inputs()]
        return lambda inputs: session.run(None, {name: inputs[name] for name in names})[0]


PEERS = {"openvino-f32": lambda: OpenVino("f32"), "openvino-bf16": lambda: OpenVino("bf16"), "onnxruntime": OnnxRuntime}


def milliseconds(run, budget, runs):
    """All measured times, without those of the first runs, and what the last run gave."""
    begun = time.perf_counter()
    for warm in range(WARM):
        if warm == 0 or time.perf_counter() - begun < budget:
            run()
    times, found, end = [], None, time.perf_counter() + budget
    while len(times) < runs or time.perf_counter() < end:
        start = time.perf_counter()
        found = run()
        times.append((time.perf_counter() - start) * 1e3)
    return times, found


def peak_rss_mib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(round(int(line.split()[1]) / 1024, 1) for line in status if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("model")
    parser.add_argument("--work", default="ABCD")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for each measurement")
    parser.add_argument("--runs", type=int, default=5, help="runs of each measurement, at least")
    options = parser.parse_args()
    peer = PEERS[options.peer]()
    about = {"peer": options.peer, "version": peer.version}
    if peer.absent():
        print(json.dumps({**about, "absent": peer.absent()}))
        return
    for threads in options.threads:
        infer = peer.load(options.model, threads)
        for work in options.work:
            inputs = inputs_of(work)
            times, hidden = milliseconds(lambda: infer(inputs), options.budget, options.runs)
            if hidden.shape[:2] != WORKS[work] or not numpy.isfinite(hidden).all():
                raise SystemExit(f"{options.peer}: {work} gives {hidden.shape}, or numbers that are not finite")
            print(json.dumps({**about, "work": work, "tokens": "%dx%d" % WORKS[work], "threads": threads,
                              "ms": round(statistics.median(times), 3), "best_ms": round(min(times), 3), "n": len(times),
                              "peak_rss_mib": peak_rss_mib()}), flush=True)


if __name__ == "__main__":
    main()
