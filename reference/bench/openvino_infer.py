#!/usr/bin/env python3
"""Times an OpenVINO model in the works, flags and fields of the peers' infer_bench.py: openvino_infer.py MODEL.xml …

For models that the peers' script does not know; `reference/bench/make_bert_base.py` makes one.
"""
import argparse
import json
import resource
import statistics
import time

import numpy
import openvino

WORKS = {"A": (1, 32), "B": (1, 128), "C": (1, 384), "D": (32, 128)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--work", default="ABCD")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budget", type=float, default=3.0)
    options = parser.parse_args()
    for threads in options.threads:
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": "NO"}
        request = openvino.Core().compile_model(options.model, "CPU", settings).create_infer_request()
        for work in options.work:
            shape = WORKS[work]
            ids = numpy.random.default_rng(0).integers(1000, 29000, shape, dtype=numpy.int64)
            ids[:, 0], ids[:, -1] = 101, 102
            values = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
            inputs = {port.get_any_name(): values[port.get_any_name()] for port in request.model_inputs}
            times, end = [], None
            while end is None or len(times) < 5 or time.perf_counter() < end:
                start = time.perf_counter()
                request.infer(inputs)
                if end is None:  # the first run warms up
                    end = time.perf_counter() + options.budget
                else:
                    times.append((time.perf_counter() - start) * 1e3)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"peer": "openvino-int8", "work": work, "tokens": "%dx%d" % shape, "threads": threads,
                              "ms": round(statistics.median(times), 3), "best_ms": round(min(times), 3),
                              "n": len(times), "peak_rss_mib": round(peak, 1)}), flush=True)


if __name__ == "__main__":
    main()
