"""Runs the examples for Ray and Spark on this machine, kills workers meanwhile, and compares the answers with one process.

    python reference/cluster.py --model model.qbert [--texts FILE] [--rows 200000] [--only ray spark] [--json FILE]

Needs qbert's wheel, ray[data], pyspark and Java. --texts has a text per line, repeated until there are enough rows.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pyarrow
import pyarrow.parquet

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples" / "cluster"
GROUPS = 40
WORDS = "the path to the old mill is deep in mud and the lake behind it frozen since monday".split()


def write_rows(path, texts, count):
    if texts:
        lines = texts.read_text(encoding="utf-8").splitlines()
        texts = [lines[row % len(lines)] for row in range(count)]
    else:
        texts = [" ".join(WORDS[(row * 7 + k * k) % len(WORDS)] for k in range(1 + row % 23)) for row in range(count)]
    table = pyarrow.table({"id": range(count), "text": texts})
    pyarrow.parquet.write_table(table, path, row_group_size=-(-count // GROUPS))


def processes(*words):
    """The processes whose command has all of these words."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode() if entry.name.isdigit() else ""
        except OSError:
            continue
        if command and all(word in command for word in words):
            yield int(entry.name)


def difference(out, expected):
    """What is wrong with the answers, or nothing."""
    found = pyarrow.parquet.read_table([str(path) for path in sorted(out.glob("*.parquet"))]).sort_by("id")
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows instead of {expected.num_rows}"
    for column in ["id", "text", "label", "probability"]:
        if not found[column].combine_chunks().equals(expected[column].combine_chunks()):
            return f"column {column} differs"
    return None


def start(command, environment):
    return subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)


def finished(process, name):
    if process.wait() != 0:
        raise SystemExit(f"{name} failed")


def wait_until(process, condition):
    while not condition():
        if process.poll() is not None:
            raise SystemExit("it ended before anything could be killed: give more --rows")
        time.sleep(0.05)


def kill_one(process, find):
    """Kills one of the processes that `find` names, as soon as there is one."""
    wait_until(process, lambda: list(find()))
    victim = next(iter(find()))
    os.kill(victim, signal.SIGKILL)
    return victim


def try_ray(model, data, out, expected):
    command = [sys.executable, str(EXAMPLES / "ray_predict.py"), "--model", model, "--data", str(data), "--out", str(out)]
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    done = lambda: len(list(out.glob("part-*.parquet")))
    parts_of_ray = lambda: {*processes("ray::"), *processes("raylet"), *processes("gcs_server")}
    others = parts_of_ray()
    begun = time.monotonic()
    process = start(command, environment)
    wait_until(process, lambda: done() >= GROUPS // 4)
    killed = kill_one(process, lambda: set(processes("ray::", "MapWorker")) - others)
    print(f"ray: worker {killed} killed when {done()} of {GROUPS} parts were done", flush=True)
    finished(process, "ray")
    seconds = time.monotonic() - begun
    problem = difference(out, expected)
    # The whole job dies; the same command does the rest and leaves alone what is there.
    for path in sorted(out.glob("part-*.parquet"))[GROUPS // 4 :]:
        path.unlink()
    process = start(command, environment)
    wait_until(process, lambda: done() >= GROUPS // 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The daemons that the job started; another Ray of this machine is left alone.
    for left in parts_of_ray() - others:
        try:
            os.kill(left, signal.SIGKILL)
        except ProcessLookupError:
            pass
    kept = {path: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}
    print(f"ray: the job killed when {len(kept)} of {GROUPS} parts were done", flush=True)
    finished(start(command, environment), "ray")
    touched = [path.name for path, moment in kept.items() if path.stat().st_mtime_ns != moment]
    problem = problem or difference(out, expected) or (f"done twice: {', '.join(touched)}" if touched else None)
    return {"seconds": round(seconds, 1), "parts_kept_by_the_second_run": len(kept), "problem": problem}


def try_spark(model, data, out, expected):
    command = [sys.executable, str(EXAMPLES / "spark_predict.py"), "--model", model, "--data", str(data), "--out", str(out)]
    # As many workers as there are cores, and four trials for every task.
    master = f"--master local[{os.cpu_count()},4] --conf spark.sql.files.maxPartitionBytes=262144 --conf spark.ui.enabled=false"
    environment = {"PYSPARK_SUBMIT_ARGS": f"{master} --conf spark.log.level=ERROR pyspark-shell", "PYSPARK_PYTHON": sys.executable}
    begun = time.monotonic()
    process = start(command, environment)
    # Workers are forks of a daemon. The daemon has no parent of its kind.
    def workers():
        daemons = set(processes("pyspark.daemon"))
        for pid in daemons:
            try:
                parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent in daemons:
                yield pid

    parts = lambda: len(list(out.glob("_temporary/**/part-*.parquet")))
    wait_until(process, lambda: parts() >= 2)
    killed = kill_one(process, workers)
    print(f"spark: worker {killed} killed when {parts()} parts were written", flush=True)
    finished(process, "spark")
    return {"seconds": round(time.monotonic() - begun, 1), "problem": difference(out, expected)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--only", nargs="*", choices=["ray", "spark"], default=["ray", "spark"])
    parser.add_argument("--json", type=pathlib.Path, help="write the outcome here")
    options = parser.parse_args()
    model = str(pathlib.Path(options.model).absolute())
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data = scratch / "rows.parquet"
        write_rows(data, options.texts, options.rows)
        alone = scratch / "expected.parquet"
        command = [sys.executable, "-m", "qbert", "predict", model, "--data", str(data), "--out", str(alone), "-q"]
        begun = time.monotonic()
        subprocess.run(command, check=True)
        result = {"rows": options.rows, "one process": {"seconds": round(time.monotonic() - begun, 1)}}
        expected = pyarrow.parquet.read_table(alone)
        for name, attempt in {"ray": try_ray, "spark": try_spark}.items():
            if name in options.only:
                result[name] = attempt(model, data, scratch / name, expected)
    print(json.dumps(result, indent=1))
    if options.json:
        result["command"] = "python reference/cluster.py --model MODEL --texts TEXTS --json FILE"
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(own.get("problem") for own in result.values() if isinstance(own, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
