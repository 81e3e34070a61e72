"""The shapes that other libraries expect. None of them is imported: a class here only has the methods they call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

from ._errors import InputError
from ._model import Model, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

#: A packed model, or where its file is.
ModelLike = Union[Model, str, "os.PathLike[str]"]


def _opened(model: ModelLike, threads: int | None = None) -> Model:
    return model if isinstance(model, Model) else load(model, threads=threads)


class SentenceTransformer:
    """The part of ``sentence_transformers.SentenceTransformer`` that applications use.

    >>> encoder = qbert.SentenceTransformer("model.qbert")
    >>> vectors = encoder.encode(["deep mud", "fresh snow"], normalize_embeddings=True)
    >>> encoder.similarity(vectors, vectors).shape
    (2, 2)
    """

    def __init__(
        self,
        model_name_or_path: ModelLike,
        *,
        pooling: str | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.model = _opened(model_name_or_path, threads)
        self.pooling = pooling
        self.prompts = dict(prompts or {})
        self.default_prompt_name = default_prompt_name

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
    ) -> Any:
        """One vector for each sentence, as a numpy array; a tensor with ``convert_to_tensor``.

        ``batch_size``, ``show_progress_bar`` and ``device`` are accepted and change nothing: there is no padding to save, and
        no device but the CPU. With ``output_value="token_embeddings"`` every sentence has a row for each token.

        >>> encoder.encode("deep mud").shape
        (32,)
        """
        del batch_size, show_progress_bar, device
        if precision != "float32":
            raise InputError(f"precision is {precision!r}", "only 'float32' is supported")
        before = self._prompt(prompt_name, prompt)
        if isinstance(sentences, str):
            texts: Any = before + sentences
        else:
            texts = [before + sentence for sentence in sentences] if before else sentences
        if output_value == "token_embeddings":
            states = self.model.hidden_states(texts)
            return states["vectors"] if isinstance(texts, str) else [one["vectors"] for one in states]
        if output_value != "sentence_embedding":
            raise InputError(f"output_value is {output_value!r}", "use 'sentence_embedding' or 'token_embeddings'")
        found = self.model.embed(texts, pooling=self.pooling, normalize=normalize_embeddings or None)
        if convert_to_tensor:
            torch: Any = __import__("torch")
            return torch.from_numpy(found)
        return found if convert_to_numpy else list(found)

    def encode_query(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """``encode`` with the prompt called ``query``, if there is one."""
        named: dict[str, Any] = {"prompt_name": "query" if "query" in self.prompts else None, **options}
        return self.encode(sentences, **named)

    def encode_document(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """``encode`` with the prompt called ``document``, if there is one."""
        named: dict[str, Any] = {"prompt_name": "document" if "document" in self.prompts else None, **options}
        return self.encode(sentences, **named)

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> NDArray[np.float32]:
        """The cosine of every vector of the first with every vector of the second."""
        found: NDArray[np.float32] = _unit(embeddings1) @ _unit(embeddings2).T
        return found

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> NDArray[np.float32]:
        """The cosine of each vector of the first with the vector at the same place of the second."""
        found: NDArray[np.float32] = (_unit(embeddings1) * _unit(embeddings2)).sum(axis=-1)
        return found

    def get_sentence_embedding_dimension(self) -> int:
        """The length of a vector."""
        return self.model.hidden_size

    @property
    def max_seq_length(self) -> int:
        """The longest sequence in tokens."""
        return self.model.max_length

    def get_max_seq_length(self) -> int:
        """The longest sequence in tokens."""
        return self.model.max_length

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return prompt
        name = name or self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise InputError(f"there is no prompt {name!r}", f"there are {sorted(self.prompts)}")
        return self.prompts[name]


def _unit(vectors: ArrayLike) -> NDArray[np.float32]:
    import numpy

    array = numpy.atleast_2d(numpy.asarray(vectors, dtype=numpy.float32))
    unit: NDArray[np.float32] = array / numpy.maximum(numpy.linalg.norm(array, axis=-1, keepdims=True), 1e-12)
    return unit


class _Estimator:
    """What scikit-learn asks of every estimator: its parameters by name."""

    _parameters: tuple[str, ...] = ()
    _estimator_type: str | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, for ``clone`` and grid search."""
        del deep
        return {name: getattr(self, name) for name in self._parameters}

    def set_params(self, **parameters: Any) -> Any:
        """Sets parameters."""
        for name, value in parameters.items():
            if name not in self._parameters:
                raise InputError(f"there is no parameter {name!r}", f"there are {', '.join(self._parameters)}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this, so it is there.
        utils: Any = __import__("sklearn.utils", fromlist=["Tags"])
        is_classifier = self._estimator_type == "classifier"
        return utils.Tags(
            estimator_type=self._estimator_type,
            target_tags=utils.TargetTags(required=False),
            transformer_tags=None if is_classifier else utils.TransformerTags(),
            classifier_tags=utils.ClassifierTags() if is_classifier else None,
            regressor_tags=None,
            input_tags=utils.InputTags(string=True, two_d_array=False),
            requires_fit=False,
            no_validation=True,
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._parameters)
        return f"{type(self).__name__}({shown})"


class TextEmbedder(_Estimator):
    """A scikit-learn transformer: texts in, vectors out. There is nothing to fit.

    >>> embedder = qbert.TextEmbedder("model.qbert")
    >>> embedder.fit_transform(["deep mud", "fresh snow"]).shape
    (2, 32)
    """

    _parameters = ("model", "pooling", "normalize")
    _estimator_type = "transformer"

    def __init__(self, model: ModelLike, pooling: str | None = None, normalize: bool | None = None) -> None:
        self.model = model
        self.pooling = pooling
        self.normalize = normalize

    def fit(self, X: Any = None, y: Any = None) -> TextEmbedder:
        """Opens the model."""
        del X, y
        self.model_ = _opened(self.model)
        return self

    def transform(self, X: Iterable[str]) -> NDArray[np.float32]:
        """The vectors of texts."""
        if not hasattr(self, "model_"):
            self.fit()
        return self.model_.embed(_column(X), pooling=self.pooling, normalize=self.normalize)

    def fit_transform(self, X: Iterable[str], y: Any = None) -> NDArray[np.float32]:
        """The vectors of texts."""
        return self.fit(X, y).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """``qbert0``, ``qbert1``, … as an array."""
        import numpy

        del input_features
        return numpy.array([f"qbert{index}" for index in range(_opened(self.model).hidden_size)], dtype=object)


class TextClassifier(_Estimator):
    """A scikit-learn classifier that is trained already: texts in, labels out.

    >>> classifier = qbert.TextClassifier("model.qbert")
    >>> classifier.predict(["deep mud up to the chapel"]).tolist()
    ['muddy']
    >>> classifier.predict_proba(["deep mud up to the chapel"]).shape
    (1, 3)
    """

    _parameters = ("model",)
    _estimator_type = "classifier"

    def __init__(self, model: ModelLike) -> None:
        self.model = model

    def fit(self, X: Any = None, y: Any = None) -> TextClassifier:
        """Opens the model; it is not trained any further."""
        del X, y
        self.model_ = _opened(self.model)
        if self.model_.head != "text-classification":
            raise InputError(f"{self.model_!r} does not classify texts", "give a model that was trained for labels of texts")
        return self

    @property
    def classes_(self) -> Any:
        """The labels, in the order of the columns of ``predict_proba``."""
        import numpy

        return numpy.array(self._model().labels, dtype=object)

    def predict(self, X: Iterable[Any]) -> Any:
        """The most probable label of each text."""
        import numpy

        return numpy.array([found["label"] for found in self._model().predict(_column(X))], dtype=object)

    def predict_proba(self, X: Iterable[Any]) -> NDArray[np.float64]:
        """The probability of each label for each text."""
        import numpy

        found = self._model().predict(_column(X))
        rows = [[score["probability"] for score in one["scores"]] for one in found]
        return numpy.array(rows, dtype=numpy.float64).reshape(len(rows), len(self._model().labels))

    def decision_function(self, X: Iterable[Any]) -> NDArray[np.float64]:
        """The logit of each label for each text."""
        import numpy

        found = self._model().predict(_column(X))
        rows = [[score["logit"] for score in one["scores"]] for one in found]
        return numpy.array(rows, dtype=numpy.float64).reshape(len(rows), len(self._model().labels))

    def score(self, X: Iterable[Any], y: Sequence[Any]) -> float:
        """The share of texts with the right label."""
        found = self.predict(X)
        return float(sum(a == b for a, b in zip(found, y)) / max(len(found), 1))

    def _model(self) -> Model:
        if not hasattr(self, "model_"):
            self.fit()
        return self.model_


def _column(texts: Any) -> list[Any]:
    """Texts from whatever scikit-learn passes on: a list, a column of a table, or a table with one column."""
    if hasattr(texts, "ndim") and texts.ndim == 2 and texts.shape[1] == 1:
        texts = texts.iloc[:, 0] if hasattr(texts, "iloc") else texts[:, 0]
    if hasattr(texts, "to_list"):
        return list(texts.to_list())
    return list(texts.tolist() if hasattr(texts, "tolist") else texts)


class LangChainEmbeddings:
    """The methods of LangChain's ``Embeddings``.

    >>> embeddings = qbert.LangChainEmbeddings("model.qbert")
    >>> len(embeddings.embed_documents(["deep mud", "fresh snow"])), len(embeddings.embed_query("mud"))
    (2, 32)
    """

    def __init__(self, model: ModelLike, *, pooling: str | None = None, normalize: bool = True) -> None:
        self.model = _opened(model)
        self.pooling = pooling
        self.normalize = normalize

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One list of numbers for each text."""
        found: list[list[float]] = self.model.embed(texts, pooling=self.pooling, normalize=self.normalize).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The numbers of one text."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """``embed_documents`` on another thread."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(None, self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """``embed_query`` on another thread."""
        return (await self.aembed_documents([text]))[0]


class ChromaEmbeddingFunction:
    """The methods of Chroma's ``EmbeddingFunction``.

    >>> function = qbert.ChromaEmbeddingFunction("model.qbert")
    >>> [vector.shape for vector in function(["deep mud", "fresh snow"])]
    [(32,), (32,)]
    >>> qbert.ChromaEmbeddingFunction.build_from_config(function.get_config()).get_config()["path"]
    'model.qbert'
    """

    def __init__(self, model: ModelLike, *, pooling: str | None = None, normalize: bool = True) -> None:
        self.model = _opened(model)
        self.pooling = pooling
        self.normalize = normalize

    def __call__(self, input: list[str]) -> list[NDArray[np.float32]]:
        """One array for each document."""
        return list(self.model.embed(input, pooling=self.pooling, normalize=self.normalize))

    def embed_query(self, input: list[str]) -> list[NDArray[np.float32]]:
        """One array for each query."""
        return self(input)

    @staticmethod
    def name() -> str:
        """What Chroma keeps with a collection."""
        return "qbert"

    def get_config(self) -> dict[str, Any]:
        """What Chroma keeps to make the function again."""
        return {"path": self.model.path, "pooling": self.pooling, "normalize": self.normalize}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> ChromaEmbeddingFunction:
        """Makes the function again."""
        return ChromaEmbeddingFunction(config["path"], pooling=config["pooling"], normalize=config["normalize"])

    def default_space(self) -> str:
        """How Chroma compares the vectors."""
        return "cosine"

    def supported_spaces(self) -> list[str]:
        """How Chroma may compare them."""
        return ["cosine", "l2", "ip"]

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Refuses a configuration that is not one of these."""
        if not {"path", "pooling", "normalize"} <= set(config):
            raise InputError("not a configuration of this function", "it has path, pooling and normalize")

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Vectors of different models cannot be compared."""
        if old_config != new_config:
            raise InputError("the model of a collection cannot change", "make a new collection")

    @staticmethod
    def is_legacy() -> bool:
        """Whether it lacks the methods above."""
        return False
