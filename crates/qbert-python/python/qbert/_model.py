"""A packed model: labels, entities, answers and vectors of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

from . import _qbert
from ._errors import InputError, InputTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

#: What a model is asked: a text, a pair of texts, or a dict with the keys ``text``, ``text`` and ``text_pair``, ``words``,
#: or ``question`` and ``context``.
Input = Union[str, "tuple[str, str]", "Mapping[str, Any]"]

_RawInput = Union[str, "tuple[str, str]", "list[str]"]

_FILE_NAME = "model.qbert"


class _Usual:
    """The default of ``top_k``, which differs from every value: pipelines then leave the innermost list out."""

    def __repr__(self) -> str:
        return "USUAL"


_USUAL = _Usual()


def load(
    model: str | os.PathLike[str] | bytes,
    *,
    threads: int | None = None,
    max_length: int | None = None,
    max_input_bytes: int | None = None,
    storage: str = "auto",
) -> Model:
    """Opens a packed model.

    ``model`` is a file, a directory that holds a ``model.qbert``, or the bytes of a file.
    ``threads`` work on one call (default: one per core). Texts longer than ``max_length`` tokens are cut or read in windows
    (default: as long as the model allows). Entities and answers are looked for in at most ``max_input_bytes`` (1 MiB).
    ``storage`` is ``"auto"``, ``"memory"`` or ``"mapped"``: a file of more than 256 MiB is mapped unless you say otherwise.

    >>> model = qbert.load("model.qbert", threads=1, max_length=64)
    >>> model
    Model('model.qbert', task='classify', labels=['dry', 'icy', 'muddy'])
    """
    return Model(
        model, threads=threads, max_length=max_length, max_input_bytes=max_input_bytes, storage=storage
    )


class Model:
    """An open packed model; ``qbert.load`` makes one.

    A model can be shared between threads: calls release the interpreter's lock. It can be pickled, which keeps its path.
    A text gets the same answer, to the last bit, alone or in any batch and on any number of threads.
    """

    __slots__ = ("_asked", "_session")

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        max_input_bytes: int | None = None,
        storage: str = "auto",
    ) -> None:
        content: bytes | None = None
        if isinstance(model, (bytes, bytearray, memoryview)):
            content, path = bytes(model), "<bytes>"
        elif isinstance(model, (str, os.PathLike)):
            path = os.fspath(model)
            if not isinstance(path, str):
                path = os.fsdecode(path)
            if os.path.isdir(path):
                path = os.path.join(path, _FILE_NAME)
        else:
            raise InputTypeError(
                f"a model of type {type(model).__name__}", "give a path, or the bytes of a packed model"
            )
        numbers = {"threads": threads, "max_length": max_length, "max_input_bytes": max_input_bytes}
        for name, number in numbers.items():
            if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
                raise InputTypeError(f"{name} is {number!r}", "give a whole number, or leave it out")
            if number is not None and number < 1:
                raise InputError(f"{name} is {number}", "give a number of at least 1, or leave it out")
        self._asked: dict[str, Any] = {**numbers, "storage": storage}
        self._session = _qbert.Session(path, content, threads, max_length, max_input_bytes, storage)

    # Answers

    def __call__(
        self,
        inputs: Input | Iterable[Input] | None = None,
        *,
        text_pair: str | None = None,
        question: str | None = None,
        context: str | None = None,
        top_k: int | None | _Usual = _USUAL,
    ) -> Any:
        """Answers in the shape of the pipelines of ``transformers``.

        One text gives a list with one dict, several texts give one dict each:

        >>> model("the path to the lake is frozen")
        [{'label': 'icy', 'score': 0.64...}]
        >>> model(["deep mud up to the chapel", "the road is frozen"])
        [{'label': 'muddy', 'score': 0.67...}, {'label': 'icy', 'score': 0.69...}]

        With ``top_k`` a text has several labels, the most probable first; ``None`` gives all:

        >>> [found["label"] for found in model("the path to the lake is frozen", top_k=None)]
        ['icy', ...]

        A pair is a dict with ``text`` and ``text_pair``, a tuple, or a text with the argument ``text_pair``.

        A model of entities gives a list of them for each text:

        >>> entities("A barn owl was seen at Mill Pond .")
        [{'entity_group': 'BIRD', 'score': 0.9..., 'word': 'barn owl', 'start': 2, 'end': 10}, ...]

        A model that answers questions takes a question and its context, or dicts with both:

        >>> answers(question="When does the ferry Cora leave ?",
        ...         context="The ferry Cora leaves Skerry at noon and reaches Kelp Bay at four .")
        {'score': ..., 'start': 32, 'end': 36, 'answer': 'noon'}
        """
        if question is not None or context is not None:
            if inputs is not None or question is None or context is None:
                raise InputError("a question needs a context, and nothing else", "give question and context, or dicts")
            inputs = {"question": question, "context": context}
        elif text_pair is not None:
            if not isinstance(inputs, str):
                raise InputError("text_pair without one text", "give dicts with text and text_pair for several pairs")
            inputs = (inputs, text_pair)
        elif inputs is None:
            raise InputError("there is no input", "give a text, a list of texts, or question and context")
        if not isinstance(top_k, _Usual) and top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise InputError(f"top_k is {top_k!r}", "give a number of at least 1, or None for all")
        head = self._session.head
        raw, is_single = _raw_inputs(inputs)
        found = self._session.predict(raw)
        if head == "text-classification":
            results: list[Any] = [_classified(one, top_k) for one in found]
            # As in transformers: one text that is a plain string is answered with a list.
            if isinstance(inputs, str) and isinstance(top_k, _Usual):
                return results
        elif head == "token-classification":
            results = [[_entity(entity) for entity in one["entities"]] for one in found]
        else:
            results = [_answered(one, top_k) for one in found]
        return results[0] if is_single else results

    def predict(self, inputs: Input | Iterable[Input]) -> Any:
        """Answers with every detail, as ``qbert predict --json`` prints them: one dict for one input, else a list.

        ``removed`` is the number of word pieces that were cut off because the text was too long.

        >>> found = model.predict("the path to the lake is frozen")
        >>> found["label"], found["removed"], sorted(found["scores"][0])
        ('icy', 0, ['label', 'logit', 'probability'])
        """
        raw, is_single = _raw_inputs(inputs)
        found = self._session.predict(raw)
        return found[0] if is_single else found

    def tag(self, words: list[str] | list[list[str]]) -> Any:
        """The tag of each word, for a model of entities: a list of dicts for one sentence, a list of lists for several.

        Words are not split any further.

        >>> [(word["word"], word["entity"]) for word in entities.tag(["A", "barn", "owl"])]
        [('A', 'O'), ('barn', 'B-BIRD'), ('owl', 'I-BIRD')]
        """
        is_single = not words or isinstance(words[0], str)
        sentences: list[Any] = [words] if is_single else list(words)
        found = self._session.predict([_words(sentence) for sentence in sentences])
        if self._session.head != "token-classification":
            raise InputError("only models of entities have tags of words", "call the model itself")
        results = [
            [
                {"word": word, "entity": tag, "score": probability}
                for word, tag, probability in zip(one["words"], one["tags"], one["probabilities"])
            ]
            for one in found
        ]
        return results[0] if is_single else results

    # Vectors

    def embed(
        self, texts: str | Iterable[str], *, pooling: str | None = None, normalize: bool | None = None
    ) -> NDArray[np.float32]:
        """One vector for each text: an array of ``(texts, hidden_size)``, or of ``(hidden_size,)`` for one text.

        Vectors are made as the model's file says. ``pooling`` may be ``"mean"`` over all tokens, ``"first"`` or ``"last"`` for
        one token, ``"max"``, ``"weighted-mean"``, ``"mean-sqrt-length"`` or ``"pooler"`` instead; with ``normalize`` every vector
        has length 1. The array is the computed buffer itself, not a copy.

        >>> model.embed(["deep mud", "fresh snow"]).shape
        (2, 32)
        >>> model.embed("deep mud").dtype
        dtype('float32')
        """
        found = self._session.embed(_texts(texts), pooling, normalize)
        if isinstance(texts, str):
            vector: NDArray[np.float32] = found[0]
            return vector
        return found

    def hidden_states(self, texts: str | Iterable[str]) -> Any:
        """The vector of each token: for one text a dict, else a list of dicts.

        ``vectors`` is an array of ``(tokens, hidden_size)``, ``ids`` has the tokens, and ``offsets`` their places in the
        text in characters, ``None`` for special tokens.

        >>> states = model.hidden_states("deep mud")
        >>> states["vectors"].shape, states["offsets"]
        ((4, 32), [None, (0, 4), (5, 8), None])
        """
        found = [
            {"vectors": vectors, "ids": ids, "offsets": offsets}
            for vectors, ids, offsets in self._session.hidden_states(_texts(texts))
        ]
        return found[0] if isinstance(texts, str) else found

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        pooling: str | None = None,
    ) -> list[dict[str, Any]]:
        """The documents by how well they fit the query, the best first.

        A model that scores pairs of texts (a reranker) scores the query with each document. Any other model compares their
        vectors by cosine, which suits models that were trained for search. The dicts are those of ``CrossEncoder.rank`` in
        sentence-transformers.

        >>> model.rank("a frozen lake", ["deep mud", "a frozen lake"], top_k=1, return_documents=True)
        [{'corpus_id': 1, 'score': 0.99..., 'text': 'a frozen lake'}]
        """
        texts = _texts(documents)
        if isinstance(documents, str):
            raise InputTypeError("the documents are one string", "give a list of strings")
        scores = self._relevance(query, texts, pooling)
        # A stable order: of equal documents the first comes first.
        order = (-scores).argsort(kind="stable")[:top_k]
        ranked: list[dict[str, Any]] = []
        for index in order.tolist():
            found: dict[str, Any] = {"corpus_id": index, "score": float(scores[index])}
            if return_documents:
                found["text"] = texts[index]
            ranked.append(found)
        return ranked

    def _relevance(self, query: str, texts: list[str], pooling: str | None) -> Any:
        if self._session.scores_pairs:
            import numpy as np

            (query,) = _texts(query)
            found = self._session.predict([(query, text) for text in texts])
            return np.array([one["score"] for one in found], dtype=np.float32)
        vectors = self._session.embed([*_texts(query), *texts], pooling, True)
        return vectors[1:] @ vectors[0]

    # The model

    @property
    def path(self) -> str:
        """The file."""
        return str(self._session.path)

    @property
    def file_size(self) -> int:
        """The bytes of the file."""
        return self._session.file_size

    @property
    def head(self) -> str | None:
        """What the model answers: ``"text-classification"``, ``"token-classification"``, ``"question-answering"``, or
        ``None`` for an encoder that only embeds."""
        return self._session.head

    @property
    def task(self) -> str | None:
        """The task it was trained for, if its file says so: ``"classify"``, ``"pair"``, ``"ner"``, ``"qa"``, …"""
        return self._session.task

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs."""
        return self._session.labels

    @property
    def hidden_size(self) -> int:
        """The length of a vector."""
        return self._session.hidden_size

    @property
    def layers(self) -> int:
        """The number of encoder layers."""
        return self._session.layers

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens, including special tokens."""
        return self._session.max_length

    @property
    def threads(self) -> int:
        """The threads that work on one call."""
        return self._session.threads

    @property
    def kernels(self) -> str:
        """The instruction sets it computes with, such as ``"avx512+vnni"``."""
        return self._session.kernels

    @property
    def plan(self) -> str:
        """The bits, groups and ranges of every part, as ``plan.toml`` has them."""
        return self._session.plan

    @property
    def provenance(self) -> dict[str, str]:
        """Where the model comes from: the command, the checkpoint's hash, qbert's version."""
        return self._session.provenance

    def verify(self) -> None:
        """Reads the whole model and compares its checksums; raises ``InputError`` if it is damaged.

        >>> model.verify()
        """
        self._session.verify()

    def __repr__(self) -> str:
        parts = [repr(self.path)]
        parts += [f"task={self.task!r}"] if self.task else []
        parts += [f"labels={self.labels!r}"] if self.labels and len(self.labels) <= 12 else []
        return f"Model({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path == "<bytes>":
            raise InputTypeError("a model from bytes cannot be pickled", "load it from a file")
        return (_reopen, (self.path, self._asked))


def _reopen(path: str, asked: dict[str, Any]) -> Model:
    return Model(path, **asked)


def _raw_inputs(inputs: Any) -> tuple[list[_RawInput], bool]:
    """The inputs as the session takes them, and whether there is only one."""
    if isinstance(inputs, str):
        return [inputs], True
    if isinstance(inputs, (tuple, dict)):
        return [_raw(inputs)], True
    if hasattr(inputs, "keys"):
        return [_raw(inputs)], True
    return [_raw(one) for one in _iterated(inputs)], False


def _raw(value: Any) -> _RawInput:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return _pair(value)
    if hasattr(value, "keys"):
        return _from_keys(value)
    # numpy has its own strings in arrays of objects and characters.
    raise InputTypeError(
        f"an input of type {type(value).__name__}",
        "give a string, a pair (tuple) of strings, or a dict with text, text and text_pair, words, or question and context",
    )


def _from_keys(value: Mapping[str, Any]) -> _RawInput:
    hint = "a dict has text, text and text_pair, words, or question and context"
    keys = {key for key in value.keys() if value[key] is not None}
    if "question" in keys or "context" in keys:
        if not {"question", "context"} <= keys:
            raise InputError("a question without a context, or a context without a question", hint)
        return _pair((value["question"], value["context"]))
    if "words" in keys:
        return _words(value["words"])
    if "text" not in keys:
        raise InputError(f"a dict with the keys {sorted(map(str, keys))}", hint)
    second = value["text_pair"] if "text_pair" in keys else value["text2"] if "text2" in keys else None
    if second is not None:
        return _pair((value["text"], second))
    if not isinstance(value["text"], str):
        raise InputTypeError(f"text is of type {type(value['text']).__name__}", "give a string")
    return value["text"]


def _pair(value: tuple[Any, ...]) -> tuple[str, str]:
    if len(value) != 2 or not all(isinstance(text, str) for text in value):
        raise InputTypeError("a tuple that is not a pair of strings", "a pair is (text, text); give several texts as a list")
    return (value[0], value[1])


def _words(value: Any) -> list[str]:
    words = [] if isinstance(value, str) else list(value)
    if isinstance(value, str) or not all(isinstance(word, str) for word in words):
        raise InputTypeError("words that are not a list of strings", "give the words of one sentence as a list of strings")
    return words


def _texts(texts: Any) -> list[str]:
    """Texts as a list; the session refuses what is not a string."""
    return [texts] if isinstance(texts, str) else _iterated(texts)


def _iterated(values: Any) -> list[Any]:
    """Any iterable as a list: generators, arrays and columns of tables too."""
    if isinstance(values, list):
        return values
    try:
        # Arrays and columns give Python's own strings this way.
        return list(values.tolist() if hasattr(values, "tolist") else values)
    except TypeError:
        raise InputTypeError(f"inputs of type {type(values).__name__}", "give a string or a list of strings") from None


def _classified(found: dict[str, Any], top_k: int | None | _Usual) -> Any:
    if "score" in found:
        # One output: a value, which transformers gives under the name of its only label.
        value = {"label": "LABEL_0", "score": found["score"]}
        return value if isinstance(top_k, _Usual) else [value]
    if isinstance(top_k, _Usual) and "label" in found:
        return {"label": found["label"], "score": found["probability"]}
    scores = [{"label": score["label"], "score": score["probability"]} for score in found["scores"]]
    scores.sort(key=lambda score: -score["score"])
    return scores[0] if isinstance(top_k, _Usual) else scores[:top_k]


def _entity(entity: dict[str, Any]) -> dict[str, Any]:
    place = entity["characters"]
    return {
        "entity_group": entity["kind"],
        "score": entity["probability"],
        "word": entity["text"],
        "start": place["start"],
        "end": place["end"],
    }


def _answered(found: dict[str, Any], top_k: int | None | _Usual) -> Any:
    answers = [
        {
            "score": answer["probability"],
            "start": answer["characters"]["start"],
            "end": answer["characters"]["end"],
            "answer": answer["text"],
        }
        for answer in found["answers"][: 1 if isinstance(top_k, _Usual) else top_k]
    ]
    if isinstance(top_k, _Usual) or top_k == 1:
        # A context without any words has no answer.
        return answers[0] if answers else {"score": 0.0, "start": 0, "end": 0, "answer": ""}
    return answers
