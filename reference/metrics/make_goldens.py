"""Writes crates/qbert-tasks/tests/goldens/*.json: what the reference programs answer, for the Rust tests to equal.

One command, from the root of the repository, makes everything again (Python 3.11):

    python3 -m venv .cache/metrics && .cache/metrics/bin/pip install --no-deps -r reference/metrics/requirements.txt \
        && .cache/metrics/bin/python reference/metrics/make_goldens.py

Sources: seqeval (entity F1), scikit-learn (accuracy and its companions), the official SQuAD v1.1 script (as allennlp
0.9.0 carries it), transformers' BertTokenizerFast (pieces, longest-first truncation, windows, word alignment) and
Python itself (what is a word, a space, lower case). All texts are invented here, from a fixed seed.
"""

import importlib.metadata
import importlib.util
import json
import random
import re
import sys
import unicodedata
import warnings
from pathlib import Path

import sklearn.metrics as sk
from seqeval.metrics import accuracy_score, classification_report
from seqeval.metrics.sequence_labeling import get_entities
from transformers import BertTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "crates" / "qbert-tasks" / "tests" / "goldens"
VOCAB = ROOT / "crates" / "qbert-tasks" / "tests" / "data" / "vocab.txt"


def official_squad_script():
    """The script alone: importing the package round it would import its whole framework."""
    path = importlib.metadata.distribution("allennlp").locate_file("allennlp/tools/squad_eval.py")
    spec = importlib.util.spec_from_file_location("squad_eval", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(name, value):
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    (GOLDENS / f"{name}.json").write_text(text + "\n")
    print(f"{name}.json: {len(text)} bytes")


# ---------------------------------------------------------------- Python's characters


def ranges(codes):
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def python_characters():
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    assigned = [code for code in codes if unicodedata.category(chr(code)) != "Cn"]
    assigned_set = set(assigned)
    word = re.compile(r"\w")
    write(
        "python_characters",
        {
            "unicode": unicodedata.unidata_version,
            "word": ranges(code for code in assigned if word.match(chr(code))),
            "space": ranges(code for code in assigned if not chr(code).split()),
            "unassigned": ranges(code for code in codes if code not in assigned_set),
            "lower": [[code, chr(code).lower()] for code in assigned if chr(code).lower() != chr(code)],
        },
    )


# ---------------------------------------------------------------- SQuAD


HARD_TEXTS = [
    "", " ", "the", "The", "a the an", "A.", "an-other", "the\u00a0owl", "a\u0301 lone accent", "The\u200bOwl",
    "owl\u001cowl", "owl\u0085owl", "x\u001fa\u001fy", "theatre", "the.owl", "(The) owl's 2nd", "ΟΔΟΣ", "ΟΔΟΣ Α", "İstanbul",
    "STRASSE", "straße", "ẞ", "a_the_b", "_a", "a_", "the日本", "日本 the", "\u0915\u093e a \u0915\u093e", "a\u093e", "Ⓐ a Ⓑ", "the\u20dd",
    "¿Qué?", "“the” quotes", "—an—", "don’t", "don't", "1,000", "1.000", "$5", "€5", "50%", "²", "½ a ½", "Ⅷ an Ⅷ",
    "a b a b", "b a", "\ta\nthe\r\nowl\x0b\x0c", "\u2003the\u2003", "\u3000a\u3000", "\ufeffthe", "Ǆ", "ŉ", "ﬁ the ﬁ", "A\u0307 the",
    "the the the", "THE THE", "tHe", "an\u00adother", "a\u200d", "\U0001d400 a", "\U0001f600the", "the\U0001f600",
]
NOUNS = "lamp boat owl heron keeper harbour bridge mill village river stone bell ferry library lantern".split()
ADJECTIVES = "old new green small quiet bright heavy slow painted".split()
PLACES = ["Ostby", "Veld", "Ålborg Quay", "São Tomé Mill", "St. Harn's", "El-Tarn", "Göta", "Ødegård"]


def phrase(rng):
    parts = [rng.choice(["the", "a", "an", "The", "", ""]), rng.choice(ADJECTIVES + ["", ""]), rng.choice(NOUNS)]
    if rng.random() < 0.4:
        parts += [rng.choice(["of", "in", "near", "–", "and the"]), rng.choice(PLACES)]
    if rng.random() < 0.2:
        parts.append(str(rng.randrange(1, 3000)))
    return " ".join(part for part in parts if part)


def noisy(rng, text):
    """A prediction with one of the usual faults."""
    words = text.split()
    kind = rng.randrange(12)
    if kind == 0:
        return text.upper()
    if kind == 1:
        return "the " + text + "."
    if kind == 2:
        return " ".join(words[:-1])
    if kind == 3:
        return " ".join(words[1:])
    if kind == 4:
        return text + " " + rng.choice(NOUNS)
    if kind == 5:
        return ""
    if kind == 6:
        return phrase(rng)
    if kind == 7:
        return rng.choice(HARD_TEXTS)
    if kind == 8:
        return "  ".join(reversed(words))
    if kind == 9:
        return "“" + text + "”, " + rng.choice(["a", "an", "the"])
    if kind == 10:
        return text.replace(" ", rng.choice(["\u00a0", "\t", "\u2009", "-"]))
    return text


def squad():
    rng = random.Random(11)
    script = official_squad_script()
    pairs = [(first, second) for first in HARD_TEXTS for second in rng.sample(HARD_TEXTS, 6) + [first]]
    for _ in range(300):
        gold = phrase(rng)
        pairs.append((noisy(rng, gold), gold))
    articles, predictions = [], {}
    for article in range(6):
        paragraphs = []
        for _ in range(5):
            phrases = [phrase(rng) for _ in range(6)]
            context = "; ".join(phrases) + "."
            questions = []
            for index in range(4):
                golds = rng.sample(phrases, rng.randrange(1, 4))
                answers = [{"text": gold, "answer_start": context.index(gold)} for gold in golds]
                identity = f"q{article}-{len(paragraphs)}-{index}"
                questions.append({"id": identity, "question": "Which one?", "answers": answers})
                if rng.random() < 0.9:
                    predictions[identity] = noisy(rng, rng.choice(golds))
            paragraphs.append({"context": context, "qas": questions})
        articles.append({"title": f"Article {article}", "paragraphs": paragraphs})
    predictions["not-a-question"] = "nothing"
    write(
        "squad",
        {
            "normalized": [[text, script.normalize_answer(text)] for text in HARD_TEXTS],
            "pairs": [
                [prediction, gold, bool(script.exact_match_score(prediction, gold)), float(script.f1_score(prediction, gold))]
                for prediction, gold in pairs
            ],
            "dataset": {"version": "1.1", "data": articles},
            "predictions": predictions,
            "report": script.evaluate(articles, predictions),
        },
    )


# ---------------------------------------------------------------- entities


TYPES = ["PER", "LOC", "TOOL", "x-y"]


def gold_sentence(rng, scheme):
    tags = []
    for _ in range(rng.randrange(0, 7)):
        if rng.random() < 0.5:
            tags += ["O"] * rng.randrange(1, 4)
            continue
        kind, length = rng.choice(TYPES), rng.randrange(1, 4)
        if scheme == "iobes":
            tags += ["S-" + kind] if length == 1 else ["B-" + kind] + ["I-" + kind] * (length - 2) + ["E-" + kind]
        else:
            touching = bool(tags) and tags[-1].endswith("-" + kind)
            first = "B-" if scheme == "iob2" or touching else "I-"
            tags += [first + kind] + ["I-" + kind] * (length - 1)
    return tags


def noisy_tags(rng, tags, rate):
    """Every kind of error: boundaries, types, prefixes, missing and spurious tags."""
    result = []
    for tag in tags:
        if rng.random() >= rate:
            result.append(tag)
            continue
        kind = rng.choice(TYPES)
        result.append(
            rng.choice(
                ["O", "B-" + kind, "I-" + kind, "E-" + kind, "S-" + kind, tag.replace("B-", "I-"), tag.replace("I-", "B-")]
            )
        )
    return result


ODD_TAGS = ["O", "B", "I", "E", "S", "B-PER", "I-PER", "E-PER", "S-LOC", "I-LOC", "X", "X-PER", "PER", "B-", ".", ".-PER", "é-PER", "BPER", "O-PER"]


def entity_case(name, gold, predicted):
    report = classification_report(gold, predicted, output_dict=True)
    scores = {
        key: [float(value[part]) for part in ("precision", "recall", "f1-score")] + [int(value["support"])]
        for key, value in report.items()
    }
    averages = {key: scores.pop(f"{key} avg") for key in ("micro", "macro", "weighted")}
    return {
        "name": name,
        "gold": gold,
        "predicted": predicted,
        "averages": averages,
        "per_type": sorted([key, value] for key, value in scores.items()),
        "word_accuracy": float(accuracy_score(gold, predicted)),
    }


def entities():
    rng = random.Random(12)
    cases = []
    for scheme in ("iob1", "iob2", "iobes"):
        for rate in (0.0, 0.1, 0.4, 1.0):
            gold = [gold_sentence(rng, scheme) for _ in range(25)] + [[]]
            cases.append(entity_case(f"{scheme} {rate}", gold, [noisy_tags(rng, tags, rate) for tags in gold]))
    gold = [gold_sentence(rng, "iob2") for _ in range(10)]
    cases.append(entity_case("nothing predicted", gold, [["O"] * len(tags) for tags in gold]))
    cases.append(entity_case("everything spurious", [["O"] * len(tags) for tags in gold], gold))
    for index in range(12):
        gold = [[rng.choice(ODD_TAGS) for _ in range(rng.randrange(1, 9))] for _ in range(8)]
        cases.append(entity_case(f"odd tags {index}", gold, [noisy_tags(rng, tags, 0.3) for tags in gold]))
    sequences = [[rng.choice(ODD_TAGS) for _ in range(rng.randrange(1, 10))] for _ in range(200)]
    spans = [[tags, [[kind, begin, end + 1] for kind, begin, end in get_entities(tags)]] for tags in sequences]
    write("entities", {"cases": cases, "spans": spans})


# ---------------------------------------------------------------- classification


def classification():
    rng = random.Random(13)
    cases = []
    for classes, examples, rate in [(2, 200, 0.1), (3, 300, 0.4), (5, 60, 0.9), (4, 9, 0.5), (2, 20, 0.0), (3, 40, 1.0)]:
        # The last class is left out of the true labels of some cases.
        gold = [rng.randrange(classes - (1 if examples < 100 and classes > 2 else 0)) for _ in range(examples)]
        predicted = [rng.randrange(classes) if rng.random() < rate else label for label in gold]
        cases.append((classes, gold, predicted))
    cases.append((2, [0, 1, 1, 0], [1, 1, 1, 1]))
    written = []
    for classes, gold, predicted in cases:
        ids = list(range(classes))
        precision, recall, f1, support = sk.precision_recall_fscore_support(gold, predicted, labels=ids, zero_division=0)
        macro = sk.precision_recall_fscore_support(gold, predicted, labels=ids, average="macro", zero_division=0)
        written.append(
            {
                "classes": classes,
                "gold": gold,
                "predicted": predicted,
                "accuracy": float(sk.accuracy_score(gold, predicted)),
                "matthews": float(sk.matthews_corrcoef(gold, predicted)),
                "per_class": [[*map(float, row[:3]), int(row[3])] for row in zip(precision, recall, f1, support)],
                "macro": [float(value) for value in macro[:3]],
                "confusion": sk.confusion_matrix(gold, predicted, labels=ids).tolist(),
            }
        )
    write("classification", written)


# ---------------------------------------------------------------- tokenization


HARD_WORDS = [
    "Ostby", "café", "cafe\u0301", "ÖL", "日本owl", "owl-house", "it's", "U.N.", "…", "a\u200bb", "\u0007", "x" * 101, "x" * 100,
    "lampkeeper", "sings!", "€5", "[SEP]", "[sep]", "[MASK]ed", "ß", "İ", "ﬁre", "“north”", "1996-08-30", "\ufffd", "é", "😀", "\u00a0",
]


def sentence(rng, longest):
    words = [rng.choice(NOUNS + ADJECTIVES + ["the", "a", "sings", "Mira", "crosses"]) for _ in range(rng.randrange(0, longest))]
    for _ in range(rng.randrange(0, 3)):
        words.insert(rng.randrange(len(words) + 1), rng.choice(HARD_WORDS))
    return rng.choice([" ", "  "]).join(words) + rng.choice(["", ".", "?", " \n"])


def plain(rng, longest):
    """Words without zero-piece ones, for which this project deliberately differs."""
    odd = ["\u0007", "\u00a0", "\ufffd"]
    words = NOUNS + ["Mira", "Ostby"] + [word for word in HARD_WORDS if word not in odd]
    return [rng.choice(words) for _ in range(rng.randrange(1, longest))]


def fast_tokenizer(**settings):
    vocabulary = {token: index for index, token in enumerate(VOCAB.read_text().split("\n")[:-1])}
    return BertTokenizerFast(vocab=vocabulary, **settings)


def tokenization():
    rng = random.Random(14)
    settings = [
        {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
        {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True},
        {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
    ]
    texts = []
    for setting in settings:
        tokenizer = fast_tokenizer(**setting)
        for text in HARD_WORDS + [sentence(rng, 12) for _ in range(60)]:
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            texts.append({**setting, "text": text, "ids": encoded["input_ids"], "characters": encoded["offset_mapping"]})
    tokenizer = fast_tokenizer()
    singles, pairs = [], []
    for _ in range(60):
        text, max_len = sentence(rng, 40), rng.randrange(3, 40)
        singles.append({"text": text, "max_len": max_len, "ids": tokenizer(text, truncation=True, max_length=max_len)["input_ids"]})
    for _ in range(250):
        # An empty second text is no second text there; a blank one is.
        first, second, max_len = sentence(rng, 30), sentence(rng, 30) or " ", rng.randrange(5, 48)
        encoded = tokenizer(first, second, truncation="longest_first", max_length=max_len)
        pairs.append(
            {"first": first, "second": second, "max_len": max_len, "ids": encoded["input_ids"], "segments": encoded["token_type_ids"]}
        )
    windows = []
    for _ in range(40):
        question, context = sentence(rng, 8), sentence(rng, 120)
        asked = tokenizer(question, add_special_tokens=False)["input_ids"]
        max_len, step = len(asked) + 3 + rng.randrange(4, 40), rng.randrange(1, 30)
        room = max_len - len(asked) - 3
        # `stride` is the overlap there, the distance between beginnings here.
        encoded = tokenizer(
            question, context, truncation="only_second", max_length=max_len, stride=room - min(step, room),
            return_overflowing_tokens=True,
        )
        windows.append(
            {"question": question, "context": context, "max_len": max_len, "stride": step, "max_question": len(asked), "ids": encoded["input_ids"]}
        )
    words = []
    for _ in range(60):
        sample = plain(rng, 20)
        encoded = tokenizer(sample, is_split_into_words=True)
        ids = encoded.word_ids()
        first = [index for index, word in enumerate(ids) if word is not None and (index == 0 or ids[index - 1] != word)]
        words.append({"words": sample, "ids": encoded["input_ids"], "first": first})
    write("tokenization", {"texts": texts, "singles": singles, "pairs": pairs, "windows": windows, "words": words})


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    GOLDENS.mkdir(parents=True, exist_ok=True)
    python_characters()
    squad()
    entities()
    classification()
    tokenization()
