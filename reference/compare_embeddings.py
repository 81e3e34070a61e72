"""Compares vectors of f32 models with sentence-transformers: every pooling, prompts, truncation, real checkpoints.

    python reference/compare_embeddings.py --bin target/release/qbert --texts FILE --out results/embeddings-f32.json NAME=CHECKPOINT …

Every checkpoint is packed without quantization and asked for the vectors of the same texts, with its own settings and with
each pooling. The figure is the largest cosine distance of any text. Needs sentence-transformers.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import sentence_transformers

# Names in `1_Pooling/config.json` and ours.
POOLINGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt-length",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "last",
}
PROMPTS = {"query": "query: ", "document": "passage: "}
LIMIT = 1e-5


def link(source, target):
    """A checkpoint whose settings can be changed without touching the original."""
    target.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.name not in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (target / file.name).symlink_to(file)


def settings(directory, width, pooling, normalize, length):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + ([("2_Normalize", "Normalize")] if normalize else [])
    (directory / "modules.json").write_text(
        json.dumps([{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(modules)])
    )
    (directory / "1_Pooling").mkdir(exist_ok=True)
    own = {name: name == pooling for name in POOLINGS}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width, **own}))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length, "do_lower_case": False}))
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS, "default_prompt_name": None}))


def ours(binary, directory, work, texts, extra=()):
    packed, vectors = work / "model.qbert", work / "vectors.npy"
    pack = [binary, "pack", directory, "--bits", "32", "--embedding-bits", "32", "--activation-bits", "32", "--out", packed, "-q"]
    subprocess.run([str(word) for word in pack], check=True, stdout=subprocess.DEVNULL)
    embed = [binary, "embed", packed, "--out", vectors, "-q", *extra]
    subprocess.run([str(word) for word in embed], check=True, input="\n".join(texts), text=True, stdout=subprocess.DEVNULL)
    return numpy.load(vectors)


def distance(one, other):
    """The largest cosine distance of two vectors in the same place, and the largest difference relative to their length."""
    one, other = one.astype(numpy.float64), other.astype(numpy.float64)
    lengths = numpy.linalg.norm(one, axis=1) * numpy.linalg.norm(other, axis=1)
    cosine = 1 - (one * other).sum(axis=1) / lengths
    relative = numpy.linalg.norm(one - other, axis=1) / numpy.linalg.norm(other, axis=1)
    return float(cosine.max()), float(relative.max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release/qbert")
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="one text per line")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    options = parser.parse_args()
    lines = options.texts.read_text().splitlines()
    texts = [line for line in lines[:: max(1, len(lines) // options.count)] if line.strip()][: options.count]
    # Longer than any limit, empty of words, other scripts, one word.
    texts += [" ".join(texts)[:4000], "!?", "Ωμέγα и кириллица 漢字", "word"]
    rows = []

    def add(model, what, expected, found):
        cosine, relative = distance(found, expected)
        rows.append({"model": model, "settings": what, "largest_cosine_distance": cosine, "largest_relative_difference": relative})
        print(f"{model:<10} {what:<32} {cosine:.2e} {relative:.2e}", flush=True)

    for pair in options.models:
        name, path = pair.split("=", 1)
        path = pathlib.Path(path).resolve()
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            model = sentence_transformers.SentenceTransformer(str(path), device="cpu")
            width = model.get_sentence_embedding_dimension()
            add(name, "its own", model.encode(texts), ours(options.bin, path, work, texts))
            for pooling, ours_name in POOLINGS.items():
                directory = work / ours_name
                link(path, directory)
                settings(directory, width, pooling, normalize=pooling != "pooling_mode_max_tokens", length=128)
                model = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
                add(name, ours_name, model.encode(texts), ours(options.bin, directory, work, texts))
            for prompt in PROMPTS:
                found = ours(options.bin, directory, work, texts, ["--prompt-name", prompt])
                add(name, f"last, prompt {prompt}", model.encode(texts, prompt_name=prompt), found)
            found = ours(options.bin, directory, work, texts, ["--dim", "128", "--normalize", "true"])
            expected = model.encode(texts, truncate_dim=128, normalize_embeddings=True)
            add(name, "last, 128 numbers", expected, found)
    result = {
        "command": "python reference/compare_embeddings.py --texts FILE " + " ".join(pair.split("=")[0] + "=CHECKPOINT" for pair in options.models),
        "texts": len(texts),
        "sentence_transformers": sentence_transformers.__version__,
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["largest_cosine_distance"] <= LIMIT for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
