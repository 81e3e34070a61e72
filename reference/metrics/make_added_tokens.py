"""Writes crates/qbert-tasks/tests/goldens/added_tokens.json: what transformers makes of a vocab.txt with added tokens.

From the root of the repository, in the environment of make_goldens.py:

    .cache/metrics/bin/python reference/metrics/make_added_tokens.py

Each case has the files beside vocab.txt, and the ids of the same texts. All texts are invented here.
"""

import importlib.metadata
import json
import shutil
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "crates" / "qbert-tasks" / "tests"
VOCAB = TESTS / "data" / "vocab.txt"
NEXT = len(VOCAB.read_text(encoding="utf-8").splitlines())

TEXTS = [
    "the Bridge <E1> of Ostby",
    "the<E1>bridge  <e1>  lamp",
    "Mira Ostby mira ostby, MIRA  OSTBY",
    "lampkeeper Lampkeepers LAMPKEEPER of日本 <E1>日",
    "[SEP] [E2] [e2]x[E2] x [E2]",
    "Ünder <E1>\u0301 zunder\tzunder",
    " <E1> ",
]


def token(content, **properties):
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return {"content": content} | usual | properties


def decoder(*tokens):
    return {"added_tokens_decoder": {str(NEXT + index): one for index, one in enumerate(tokens)}}


CONFIG = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
CASES = {
    "nothing added": {},
    "added_tokens.json": {"added_tokens.json": {"<E1>": NEXT, "Mira Ostby": NEXT + 1}},
    "special tokens without ids": {"special_tokens_map.json": {"additional_special_tokens": ["<E1>", "[E2]", "lamp"]}},
    "special tokens in the configuration": {
        "tokenizer_config.json": CONFIG | {"additional_special_tokens": ["<E1>", "[E2]"]}
    },
    "single words": {
        "tokenizer_config.json": CONFIG
        | decoder(token("<E1>", single_word=True), token("Lampkeeper", single_word=True), token("[E2]", single_word=True))
    },
    "stripping": {
        "tokenizer_config.json": CONFIG
        | decoder(token("<E1>", lstrip=True, rstrip=True), token("zunder", lstrip=True), token("[E2]", rstrip=True))
    },
    "not normalized": {
        "tokenizer_config.json": CONFIG
        | decoder(token("<E1>", normalized=False), token("Ünder", normalized=True), token("日本", normalized=False))
    },
    "normalized ideographs": {"tokenizer_config.json": CONFIG | decoder(token("日本"), token("MIRA"))},
    "special": {
        "tokenizer_config.json": CONFIG
        | decoder(token("<E1>", special=True, normalized=False), token("[E2]", special=True, normalized=True))
    },
}


def ids(files):
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(VOCAB, directory)
        for name, content in ({"tokenizer_config.json": CONFIG} | files | {"config.json": {"model_type": "bert"}}).items():
            Path(directory, name).write_text(json.dumps(content), encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(directory)
        return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def main():
    cases = [{"name": name, "files": files, "ids": ids(files)} for name, files in CASES.items()]
    golden = {"transformers": importlib.metadata.version("transformers"), "texts": TEXTS, "cases": cases}
    text = json.dumps(golden, indent=1, ensure_ascii=False) + "\n"
    (TESTS / "goldens" / "added_tokens.json").write_text(text, encoding="utf-8")


main()
