#!/usr/bin/env python3
"""Compares the ids of 10,000 real and hostile lines with those of `transformers`, for WordPiece, BPE and Unigram.

    cargo build --release -p qbert-tasks --example ids
    python reference/tokenizers/compare.py --ids target/release/examples/ids --texts FILE... [--tokenizer DIR...]

Without a directory it trains byte-level BPE as RoBERTa's and ModernBERT's and a Unigram model as XLM-R's on the texts, with their
post-processors.
`--tokenizer` adds checkpoints with a `tokenizer.json`. Every line is encoded alone and as the first text of a pair, cut at 64 tokens.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

COUNT, MAX_LEN, SIZE = 10_000, 64, 8_000
HOSTILE = [
    "", " ", "\t\n ", "a", "\u0000", "\u0001\u0002\u007f", "\u200b\u200d\ufeff", "e\u0301\u0301\u0301", "\u0301", "\ufdfa", "ﬁﬀ①½",
    "😀👩‍👩‍👧‍👦🏳️‍🌈", "日本語のテキスト 中文 한국어", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "İstanbul ß ẞ Ǆ", "x" * 500, "a" * 99 + " " + "b" * 101,
    "don't can't we'll I'm", "3.14 1,000,000 -5e10", "<s> </s> <pad> <mask> <unk>", "[CLS] [SEP] [PAD] [MASK] [UNK]", "<s>", "a<s>b",
    "run of    spaces", "         ", " a  b   c", "x" + " " * 40 + "y", "write to |||EMAIL_ADDRESS||| now",
    "\u2028line\u2029para", "\r\n", "\u00a0nbsp\u3000wide", "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𒀀𒁀", "��", "....!!!???", "``quoted'' \"text\"", "_under_score_", "▁▁ lower ▁one",
]


def special(names):
    return [tokenizers.AddedToken(name, special=True) for name in names]


def byte_level(files):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special(names), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train(files, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return tokenizer, names


def byte_level_template(files):
    """As ModernBERT's: NFC, special tokens of BERT by a template, and runs of spaces as tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special(names), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train(files, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(" " * count, normalized=False) for count in range(24, 1, -1)])
    tokenizer.add_tokens([tokenizers.AddedToken("|||EMAIL_ADDRESS|||", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 0), ("[SEP]", 2)])
    return tokenizer, names


def unigram(files):
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=special(names), unk_token="<unk>", show_progress=False)
    tokenizer.train(files, trainer)
    pair = "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, [("<s>", 0), ("</s>", 2)])
    return tokenizer, names


def save(made, directory):
    tokenizer, (first, pad, last, unknown, mask) = made
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=first, cls_token=first, eos_token=last, sep_token=last, pad_token=pad, unk_token=unknown, mask_token=mask
    )
    fast.save_pretrained(directory)


def lines(paths):
    """Half of the lines are real, the others hostile: mixtures of real words with what breaks tokenizers."""
    real = [line.strip() for path in paths for line in open(path, encoding="utf-8", errors="replace") if line.strip()]
    draw = random.Random(7)
    texts = list(HOSTILE)
    while len(texts) < COUNT:
        text = draw.choice(real)
        if len(texts) % 2:
            words = text.split(" ")
            for _ in range(draw.randint(1, 4)):
                words.insert(draw.randint(0, len(words)), draw.choice(HOSTILE))
            text = draw.choice([" ", "", "\t"]).join(words)
        texts.append(text)
    return texts


def compare(program, directory, texts):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    asked = [[text] for text in texts] + [[text, texts[-1 - index]] for index, text in enumerate(texts)]
    given = "".join(json.dumps(one) + "\n" for one in asked)
    output = subprocess.run([program, directory, str(MAX_LEN)], input=given, text=True, capture_output=True, check=True).stdout
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(asked)
    wrong = []
    for one, (ids, segments) in zip(asked, found):
        # As lists: a single empty second text would count as none.
        expected = theirs(*([text] for text in one), truncation=True, max_length=MAX_LEN, return_token_type_ids=True)
        if ids != expected["input_ids"][0] or segments != expected["token_type_ids"][0]:
            wrong.append((one, ids, expected["input_ids"][0]))
    print(f"{pathlib.Path(directory).name}: {len(asked) - len(wrong)} of {len(asked)} encodings are equal")
    for one, ids, expected in wrong[:5]:
        print(f"  {one!r}\n    ours   {ids}\n    theirs {expected}")
    return len(wrong)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--ids", required=True, help="the example `ids` of qbert-tasks")
    arguments.add_argument("--texts", nargs="+", required=True, help="files of real lines")
    arguments.add_argument("--tokenizer", nargs="*", default=[], help="directories with a tokenizer.json")
    options = arguments.parse_args()
    texts = lines(options.texts)
    with tempfile.TemporaryDirectory() as home:
        makers = [("bpe", byte_level), ("bpe-template", byte_level_template), ("unigram", unigram)]
        for name, make in makers:
            save(make(options.texts), f"{home}/{name}")
        directories = [*(f"{home}/{name}" for name, _ in makers), *options.tokenizer]
        wrong = sum(compare(options.ids, directory, texts) for directory in directories)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
