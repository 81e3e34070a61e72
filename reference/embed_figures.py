"""Measures models of vectors on all data of `embed_data.py`, and keeps the figures in one file per network.

    python3 reference/embed_figures.py --bin target/release/qbert --data DATA --out results/embeddings/minilm.json \\
        --label "2/3 bits, product codes, trained" --made-by "qbert quantize …" MODEL

MODEL is a checkpoint or a packed file. What is in the results already is not measured again.
"""

import argparse
import json
import pathlib
import subprocess

SETS = {
    "sts-b dev": "sts-dev.csv",
    "sts16": "sts16.tsv",
    "scifact": "scifact",
    "emotion": "emotion.tsv",
    "banking77": "banking77.tsv",
}


def size_of(model):
    path = pathlib.Path(model)
    return path.stat().st_size if path.is_file() else (path / "model.safetensors").stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release/qbert")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--label", required=True, help="what the model is, for people")
    parser.add_argument("--made-by", required=True, help="the command that made it")
    parser.add_argument("--only", nargs="*", default=list(SETS), help="these sets")
    parser.add_argument("model")
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    result["command"] = "python3 reference/embed_figures.py --data DATA --out FILE --label … --made-by … MODEL"
    row = next((row for row in result["rows"] if row["label"] == options.label), None)
    if row is None:
        row = {"label": options.label, "figures": {}}
        result["rows"].append(row)
    row |= {"made_by": options.made_by, "bytes": size_of(options.model)}
    for name in options.only:
        if name in row["figures"]:
            continue
        command = [options.bin, "eval", options.model, "--task", "embed", "--data", str(options.data / SETS[name]), "--json", "-q"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row["figures"][name] = found["value"]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{options.label}: {name} {row['figures'][name]:.2f}", flush=True)


if __name__ == "__main__":
    main()
