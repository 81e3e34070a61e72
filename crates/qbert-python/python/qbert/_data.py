"""Data sets in memory as the files that the library reads.

A data set is a path or several, a list of dicts, anything with the Arrow PyCapsule interface (tables of pyarrow, polars and
pandas, relations of duckdb, …), or anything that yields dicts (a ``datasets.Dataset``). None of these libraries is imported.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from . import _qbert
from ._errors import InputError, InputTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PAIR_OR_TEXT = ("classify", "pair", "sst2", "mnli")
_WORDS = ("words", "tokens")
_TAGS = ("tags", "ner_tags", "labels", "ner")


def is_in_memory(data: object) -> bool:
    """Whether the data has to be written to a file first."""
    if isinstance(data, (str, os.PathLike)):
        return False
    if isinstance(data, (list, tuple)) and data and all(isinstance(path, (str, os.PathLike)) for path in data):
        return False
    return True


def paths(data: Any) -> list[str]:
    """The paths of data in files."""
    return [os.fspath(data)] if isinstance(data, (str, os.PathLike)) else [os.fspath(path) for path in data]


def write(data: Any, task: str, name: str, directory: str) -> str:
    """Writes data in memory to a file of the form that the task reads. Returns its path."""
    rows = named(_rows(data, name), data)
    write_row: Callable[[Mapping[str, Any], int], str]
    if task in _PAIR_OR_TEXT:
        path, write_row, (begin, end) = f"{name}.jsonl", _json_line, ("", "")
    elif task in ("ner", "conll03"):
        path, write_row, (begin, end) = f"{name}.conll", _sentence, ("", "")
    elif task in ("qa", "squad"):
        path, write_row, (begin, end) = f"{name}.json", _article, ('{"data": [\n', "\n]}\n")
    else:
        # The library knows all tasks and says so.
        path, write_row, (begin, end) = f"{name}.jsonl", _json_line, ("", "")
    path = os.path.join(directory, path)
    count = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(begin)
        for number, row in enumerate(rows):
            try:
                text = write_row(row, number)
            except (KeyError, TypeError, ValueError) as error:
                if isinstance(error, (InputError, InputTypeError)):
                    raise type(error)(f"{name}, row {number}: {error.message}", error.hint) from None
                raise InputError(f"{name}, row {number}: {error}", "see the guide of the task for its columns") from error
            file.write(("," if count and begin else "") + text)
            count += 1
        file.write(end)
    if count == 0:
        raise InputError(f"{name} has no rows", "give at least one example")
    return path


def _rows(data: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """The rows as dicts."""
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            batches = _qbert.ArrowBatches(data)
        except ImportError:
            # pandas needs pyarrow for its side of the interface.
            if not hasattr(data, "to_dict"):
                raise
            yield from data.to_dict("records")
            return
        for batch in batches:
            columns = list(batch)
            for values in zip(*batch.values()):
                yield dict(zip(columns, values))
        return
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        yield from data.to_dict("records")
        return
    hint = "give a path, a list of dicts, or a table (pandas, polars, pyarrow, datasets)"
    if isinstance(data, (str, bytes)) or hasattr(data, "keys") or not hasattr(data, "__iter__"):
        raise InputTypeError(f"{name} is of type {type(data).__name__}", hint)
    for number, row in enumerate(data):
        if not hasattr(row, "keys"):
            raise InputTypeError(f"{name}, row {number} is of type {type(row).__name__}", hint)
        yield row


def named(rows: Iterator[Mapping[str, Any]], data: Any) -> Iterator[Mapping[str, Any]]:
    """Rows with names for numbers, where the data knows them: the class labels of a ``datasets.Dataset``."""
    names: dict[str, list[str]] = {}
    features = getattr(data, "features", None)
    if features is not None and hasattr(features, "items"):
        for column, feature in features.items():
            known = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
            if isinstance(known, list):
                names[column] = known
    for row in rows:
        if not names:
            yield row
            continue
        changed = dict(row)
        for column, known in names.items():
            value = changed.get(column)
            if isinstance(value, list):
                changed[column] = [known[index] for index in value]
            elif isinstance(value, int) and 0 <= value < len(known):
                changed[column] = known[value]
        yield changed


def _plain(value: Any) -> Any:
    """A value of numpy and the like as Python has it."""
    for method in ("tolist", "item", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"a value of type {type(value).__name__}")


def _json_line(row: Mapping[str, Any], _: int) -> str:
    return json.dumps(dict(row), ensure_ascii=False, default=_plain) + "\n"


def _column(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    found = next((name for name in names if name in row.keys()), None)
    if found is None:
        raise InputError(f"none of the columns {', '.join(names)}", f"it has {', '.join(map(str, row.keys()))}")
    value = row[found]
    return value.tolist() if hasattr(value, "tolist") else value


def _sentence(row: Mapping[str, Any], _: int) -> str:
    """A sentence in CoNLL columns."""
    words, tags = _column(row, _WORDS), _column(row, _TAGS)
    if len(words) != len(tags):
        raise InputError(f"{len(words)} words and {len(tags)} tags", "each word needs one tag")
    lines: list[str] = []
    for word, tag in zip(words, tags):
        if not isinstance(word, str) or not isinstance(tag, str):
            raise InputTypeError(
                f"the word {word!r} with the tag {tag!r}", "words and tags are strings; replace numbers by their names"
            )
        if not word or any(character.isspace() and character != "\u00a0" for character in word + tag):
            raise InputError(f"the word {word!r} with the tag {tag!r}", "words and tags have no spaces in them")
        lines.append(f"{word} {tag}\n")
    return "".join(lines) + "\n"


def _article(row: Mapping[str, Any], number: int) -> str:
    """A question in SQuAD's layout. Answers are a list of dicts, or a dict of lists as in ``datasets``."""
    answers: Any = row["answers"] if "answers" in row.keys() else []
    if hasattr(answers, "keys"):
        starts, texts = list(answers["answer_start"]), list(answers["text"])
        answers = [{"text": text, "answer_start": int(start)} for text, start in zip(texts, starts)]
    question = {
        "id": str(row["id"]) if "id" in row.keys() else f"row-{number}",
        "question": row["question"],
        "answers": [dict(answer) for answer in answers],
        "is_impossible": len(answers) == 0,
    }
    article = {"title": "", "paragraphs": [{"context": row["context"], "qas": [question]}]}
    return json.dumps(article, ensure_ascii=False, default=_plain)

