"""Answers a column of Parquet files with a packed model on a Ray cluster.

    python ray_predict.py --model model.qbert --data rows/ --out answers/ [--text review] [--workers 8]

The unit of work is a row group of an input file. A worker answers it, writes `answers/part-FILE-GROUP.parquet` under a temporary
name and renames it, so an output file is complete or absent. A worker that dies has its unit done again by another one, and
the same command after a crash does only what is missing. Each worker opens the model once; workers of one machine share its pages.

On a cluster, --model, --data and --out are paths that all machines see.
"""

import argparse
import os
import pathlib

import pyarrow
import pyarrow.parquet
import ray


def units(data):
    """All row groups of the input, each with the name of its output."""
    files = sorted(data.glob("*.parquet")) if data.is_dir() else [data]
    for file in files:
        for group in range(pyarrow.parquet.ParquetFile(file).num_row_groups):
            yield {"file": str(file), "group": group, "name": f"part-{file.stem}-{group:05}.parquet"}


class Answer:
    """What a worker keeps between units."""

    def __init__(self, model, text, out, threads):
        import qbert

        self.model, self.text, self.out = qbert.load(model, threads=threads), text, pathlib.Path(out)

    def __call__(self, batch):
        rows = [self.answer(*unit) for unit in zip(batch["file"], batch["group"], batch["name"])]
        return {"name": batch["name"], "rows": rows}

    def answer(self, file, group, name):
        table = pyarrow.parquet.ParquetFile(file).read_row_group(int(group))
        found = self.model.predict(table[self.text].to_pylist())
        table = table.append_column("label", pyarrow.array([answer["label"] for answer in found]))
        table = table.append_column("probability", pyarrow.array([answer["probability"] for answer in found]))
        temporary = self.out / f".{name}.{os.getpid()}"
        pyarrow.parquet.write_table(table, temporary)
        os.replace(temporary, self.out / name)
        return table.num_rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a Parquet file, or a directory of them")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a directory")
    parser.add_argument("--text", default="text", help="the column with the texts")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="how many processes have the model open")
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker")
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    for left_over in options.out.glob(".part-*"):
        left_over.unlink()
    everything = list(units(options.data))
    missing = [unit for unit in everything if not (options.out / unit["name"]).exists()]
    print(f"{len(everything)} row groups, {len(missing)} to do", flush=True)
    if not missing:
        return
    # The address of a running cluster is in RAY_ADDRESS; without one, this machine is the cluster.
    ray.init(log_to_driver=False)
    answered = ray.data.from_items(missing, override_num_blocks=len(missing)).map_batches(
        Answer,
        fn_constructor_args=(options.model, options.text, str(options.out), options.threads),
        batch_size=1,
        num_cpus=options.threads,
        # Ray Data starts a worker that dies again and hands its unit to another one.
        compute=ray.data.ActorPoolStrategy(size=options.workers),
    )
    rows = sum(row["rows"] for row in answered.iter_rows())
    print(f"{rows} rows answered", flush=True)


if __name__ == "__main__":
    main()
