"""What `serve_load.py` compares `qbert serve` with: embeddings over HTTP the way most people build it, FastAPI and ONNX Runtime.

One process per core, each with one thread of ONNX Runtime.
Run by `serve_load.py`; the model, the tokenizer and the port come as environment variables.
"""
import os

import numpy
import onnxruntime
import uvicorn
from fastapi import FastAPI
from fastapi.responses import ORJSONResponse, JSONResponse
from pydantic import BaseModel
from tokenizers import Tokenizer

try:
    import orjson  # noqa: F401
    Fast = ORJSONResponse
except ImportError:
    Fast = JSONResponse


class Request(BaseModel):
    inputs: list[str] | str


def application():
    tokenizer = Tokenizer.from_file(os.environ["TOKENIZER"])
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("INTRA_THREADS", "1"))
    session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
    names = [own.name for own in session.get_inputs()]
    app = FastAPI()

    @app.get("/health")
    async def health():
        return {"status": "ready"}

    # Not a thread per request: threads would only compete for the core.
    @app.post("/embed")
    async def embed(request: Request):
        texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        encoded = tokenizer.encode_batch(texts)
        mask = numpy.array([own.attention_mask for own in encoded], dtype=numpy.int64)
        inputs = {"input_ids": numpy.array([own.ids for own in encoded], dtype=numpy.int64), "attention_mask": mask,
                  "token_type_ids": numpy.array([own.type_ids for own in encoded], dtype=numpy.int64)}
        hidden = session.run(None, {name: inputs[name] for name in names})[0]
        vectors = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
        return Fast(vectors.tolist())

    return app


if __name__ == "__main__":
    uvicorn.run("onnx_server:application", factory=True, port=int(os.environ["PORT"]), workers=int(os.environ.get("WORKERS", "2")),
                log_level="warning")
