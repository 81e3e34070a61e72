"""The shapes of other libraries, and the libraries themselves where they are installed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import qbert

TEXTS = ["deep mud", "fresh snow", "the lake is frozen"]


def test_sentence_transformer(classifier: qbert.Model) -> None:
    encoder = qbert.SentenceTransformer(classifier, prompts={"query": "find "})
    vectors = encoder.encode(TEXTS, batch_size=8, show_progress_bar=False)
    assert np.array_equal(vectors, classifier.embed(TEXTS))
    assert encoder.encode(TEXTS[0]).shape == (encoder.get_sentence_embedding_dimension(),)
    assert np.array_equal(encoder.encode_query(TEXTS), classifier.embed(["find " + text for text in TEXTS]))
    assert np.array_equal(encoder.encode_document(TEXTS), vectors)
    tokens = encoder.encode(TEXTS, output_value="token_embeddings")
    assert [len(one) for one in tokens] == [4, 4, 6]
    cosines = encoder.similarity(vectors, vectors)
    assert cosines.shape == (3, 3) and np.allclose(np.diag(cosines), 1.0)
    assert np.allclose(encoder.similarity_pairwise(vectors, vectors), 1.0)
    assert encoder.max_seq_length == classifier.max_length
    with pytest.raises(qbert.InputError, match="prompt"):
        encoder.encode(TEXTS, prompt_name="none")


def test_scikit_learn_shapes(classifier: qbert.Model, entities: qbert.Model) -> None:
    embedder = qbert.TextEmbedder(classifier.path, normalize=True)
    assert embedder.get_params() == {"model": classifier.path, "pooling": None, "normalize": True}
    assert np.array_equal(embedder.fit(TEXTS).transform(TEXTS), classifier.embed(TEXTS, normalize=True))
    assert len(embedder.get_feature_names_out()) == classifier.hidden_size
    chosen = qbert.TextClassifier(classifier)
    labels = [one["label"] for one in classifier(TEXTS)]
    assert chosen.predict(np.array(TEXTS)).tolist() == labels
    assert chosen.predict_proba(TEXTS).sum(axis=1) == pytest.approx(1.0)
    assert chosen.classes_[chosen.predict_proba(TEXTS).argmax(axis=1)].tolist() == labels
    assert chosen.decision_function(TEXTS).shape == (3, 3)
    assert chosen.score(TEXTS, labels) == 1.0
    with pytest.raises(qbert.InputError, match="parameter"):
        chosen.set_params(models=1)
    with pytest.raises(qbert.InputError):
        qbert.TextClassifier(entities).predict(TEXTS)


def test_in_a_pipeline_of_scikit_learn(classifier: qbert.Model) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    pipeline = pytest.importorskip("sklearn.pipeline")
    selection = pytest.importorskip("sklearn.model_selection")
    base = pytest.importorskip("sklearn.base")
    embedder = qbert.TextEmbedder(classifier.path)
    assert base.clone(embedder).get_params() == embedder.get_params()
    steps = pipeline.make_pipeline(embedder, linear_model.LogisticRegression())
    texts, labels = TEXTS * 6, ["mud", "ice", "ice"] * 6
    assert steps.fit(texts, labels).predict(texts).tolist() == labels
    search = selection.GridSearchCV(steps, {"textembedder__pooling": ["mean", "first"]}, cv=2)
    assert search.fit(texts, labels).best_score_ == 1.0
    assert base.is_classifier(qbert.TextClassifier(classifier))


def test_langchain(classifier: qbert.Model) -> None:
    embeddings = qbert.LangChainEmbeddings(classifier, normalize=False)
    documents = embeddings.embed_documents(TEXTS)
    assert documents == classifier.embed(TEXTS).tolist() and isinstance(documents[0][0], float)
    assert embeddings.embed_query(TEXTS[1]) == documents[1]
    assert asyncio.run(embeddings.aembed_documents(TEXTS)) == documents
    assert asyncio.run(embeddings.aembed_query(TEXTS[1])) == documents[1]
    stores = pytest.importorskip("langchain_core.vectorstores")
    store = stores.InMemoryVectorStore(embeddings)
    store.add_texts(TEXTS)
    assert store.similarity_search("deep mud", k=1)[0].page_content == "deep mud"


def test_chroma(classifier: qbert.Model) -> None:
    function = qbert.ChromaEmbeddingFunction(classifier)
    vectors = function(TEXTS)
    assert np.array_equal(np.stack(vectors), classifier.embed(TEXTS, normalize=True))
    again = qbert.ChromaEmbeddingFunction.build_from_config(function.get_config())
    assert np.array_equal(np.stack(again.embed_query(TEXTS)), np.stack(vectors))
    qbert.ChromaEmbeddingFunction.validate_config(function.get_config())
    with pytest.raises(qbert.InputError):
        function.validate_config_update(function.get_config(), {})
    chromadb = pytest.importorskip("chromadb")
    collection = chromadb.EphemeralClient().create_collection("owls", embedding_function=function)
    collection.add(ids=["0", "1", "2"], documents=TEXTS)
    assert collection.query(query_texts=["deep mud"], n_results=1)["documents"] == [["deep mud"]]
