"""Asks a running server through clients that others wrote: `clients.py URL KEY`. `.ci/serve` starts the server on tiny models."""
import sys

import numpy
import openai
import tritonclient.http as triton
from huggingface_hub import InferenceClient

TEXTS = ["two owls", "the owl of ostby saw the owls", "who ?"]


def with_openai(url, key):
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    assert [model.id for model in client.models.list()] == ["labels", "entities", "answers", "vectors", "ranks"]
    # The package asks for base64 by itself and decodes it.
    answer = client.embeddings.create(model="vectors", input=TEXTS)
    vectors = numpy.array([item.embedding for item in answer.data], dtype=numpy.float32)
    assert vectors.shape == (3, 24) and numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    floats = client.embeddings.create(model="vectors", input=TEXTS[0], encoding_format="float")
    assert numpy.array_equal(numpy.array(floats.data[0].embedding, dtype=numpy.float32), vectors[0])
    short = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=7)
    assert len(short.data[0].embedding) == 7 and answer.usage.total_tokens > 9
    try:
        client.embeddings.create(model="nobody", input="a")
        raise AssertionError("a model that is not there")
    except openai.NotFoundError as error:
        assert "vectors" in error.body["hint"], error.body
    return vectors


def with_the_hub(url, key, vectors):
    def client(name):
        return InferenceClient(model=f"{url}/models/{name}", token=key)

    found = client("vectors").feature_extraction(TEXTS[0])
    assert numpy.array_equal(found[0], vectors[0])
    similar = client("vectors").sentence_similarity(TEXTS[0], TEXTS)
    assert abs(similar[0] - 1) < 1e-5 and len(similar) == 3
    labels = client("labels").text_classification(TEXTS[0])
    assert labels[0].score >= labels[1].score and {one.label for one in labels} == {"yes", "no"}
    text = "two owls saw ostby"
    for entity in client("entities").token_classification(text):
        assert text[entity.start:entity.end] == entity.word, entity
    answer = client("answers").question_answering(question="who ?", context=text)
    assert text[answer.start:answer.end] == answer.answer, answer


def with_triton(url, key, vectors):
    own = triton.InferenceServerClient(url.removeprefix("http://"))

    def headers():  # a new one for each call: the client adds its own to what it is given
        return {"Authorization": "Bearer " + key}

    assert own.is_server_live() and own.is_server_ready() and own.is_model_ready("vectors", headers=headers())
    assert own.get_model_metadata("vectors", headers=headers())["outputs"][0]["shape"] == [-1, 24]
    data = numpy.array([text.encode() for text in TEXTS], dtype=numpy.object_)
    for binary in (True, False):
        tensor = triton.InferInput("text", [3], "BYTES")
        tensor.set_data_from_numpy(data, binary_data=binary)
        wanted = [triton.InferRequestedOutput("embedding", binary_data=binary)]
        found = own.infer("vectors", [tensor], outputs=wanted, request_id="7", headers=headers())
        assert numpy.array_equal(found.as_numpy("embedding"), vectors)
    tensor = triton.InferInput("text", [3], "BYTES")
    tensor.set_data_from_numpy(data)
    found = own.infer("labels", [tensor], headers=headers())
    assert found.as_numpy("label").shape == (3,) and found.as_numpy("probabilities").shape == (3, 2)
    try:
        own.infer("nobody", [tensor], headers=headers())
        raise AssertionError("a model that is not there")
    except triton.InferenceServerException as error:
        assert "there is no model" in str(error), error


def main():
    url, key = sys.argv[1:]
    vectors = with_openai(url, key)
    with_the_hub(url, key, vectors)
    with_triton(url, key, vectors)
    print("openai, huggingface_hub and tritonclient: as expected")


main()
