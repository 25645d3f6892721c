"""
Serves contextual models on loopback by OpenAI's `/v1/embeddings`. A model with the context of a corpus has one name.

    cde-hf contextualize minilm handbook.txt my-model
    python examples/server.py --model minilm@handbook=my-model
    curl localhost:8000/v1/embeddings --json '{"model": "minilm@handbook", "input": "Who makes noise?"}'

`input_type` is `document` (default) or `query`, token ids are the model's own. `--index` adds `/search` with `model`,
`query` and `depth`. The variable `SERVER_TOKEN` asks for a bearer token. Code in a model is run: serve your own.
"""

import argparse
import asyncio
import base64
import copy
import hmac
import os
from typing import Annotated, Any, Literal

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request, Response
from pydantic import Field
from sentence_transformers import SentenceTransformer

from cde_hf import ContextualIndex, SentenceTransformerEmbedder


MAX_BYTES, MAX_DEPTH, Many = 8 << 20, 100, Field(min_length=1, max_length=2048, fail_fast=True)
Name, Depth, Size = Annotated[str, Body()], Annotated[int, Body(ge=1, le=MAX_DEPTH)], Annotated[int | None, Body(ge=1)]
Form, Kind = Annotated[Literal["float", "base64"], Body()], Annotated[Literal["query", "document"], Body()]
Text, Ids = Annotated[str, Body(max_length=2**15, pattern=r"\S")], Annotated[list[Annotated[int, Field(ge=0)]], Many]
Input = Annotated[Text | Ids | Annotated[list[Text], Many] | Annotated[list[Ids], Many], Body()]


class Queue:
    """Texts that wait for a function. All texts that wait when it becomes free are one batch."""

    def __init__(self, function: Any, limit: int):
        self.function, self.limit, self.lock, self.waiting, self.num_texts = function, limit, asyncio.Lock(), [], 0

    async def __call__(self, texts: list[str]) -> Any:
        if self.num_texts + len(texts) > self.limit:
            status = 413 if len(texts) > self.limit else 429
            raise HTTPException(status, f"At most {self.limit} texts may wait at a time.", {"Retry-After": "1"})
        if not self.waiting:
            self.batch = asyncio.create_task(self.run_batch())
        start, self.num_texts = len(self.waiting), self.num_texts + len(texts)
        self.waiting += texts
        return (await asyncio.shield(self.batch))[start : start + len(texts)]  # it goes on if this client leaves

    async def run_batch(self) -> Any:
        async with self.lock:
            texts, self.waiting = self.waiting, []
            try:
                return await asyncio.to_thread(self.function, texts)
            finally:
                self.num_texts -= len(texts)


class Queues(dict):
    def __missing__(self, key: tuple[str, str]) -> None:
        raise HTTPException(404, f"There is no model `{key[0]}` for {key[1]}. The models are {list(models)}.")


app, models, counters, queues = FastAPI(), {}, {}, Queues()


@app.middleware("http")
async def guard(request: Request, answer: Any) -> Any:
    token, given = os.environ.get("SERVER_TOKEN"), request.headers.get("authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return Response("A bearer token is needed.", 401, {"WWW-Authenticate": "Bearer"})
    if request.method == "POST" and not 0 < int(request.headers.get("content-length", 0)) <= MAX_BYTES:
        return Response(f"A body with its length is needed, of at most {MAX_BYTES} bytes.", 413)
    return await answer(request)


@app.post("/v1/embeddings")
async def embeddings(
    model: Name, input: Input, encoding_format: Form = "float", dimensions: Size = None, input_type: Kind = "document"
) -> dict[str, Any]:
    queue, tokenizer = queues[model, input_type], models[model].tokenizer
    rows = [input] if isinstance(input, str) or isinstance(input[0], int) else input
    if any(max(row) >= len(tokenizer) for row in rows if isinstance(row, list)):
        raise HTTPException(400, f"Token ids must be those of the model's tokenizer, below {len(tokenizer)}.")
    if dimensions is not None and dimensions > models[model].get_embedding_dimension():
        raise HTTPException(400, f"`dimensions` must be at most {models[model].get_embedding_dimension()}.")
    texts = [row if isinstance(row, str) else tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    vectors = np.asarray(await queue(texts), "<f4")[:, :dimensions]
    vectors = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) if dimensions else 1)
    found = [base64.b64encode(row).decode() if encoding_format == "base64" else row.tolist() for row in vectors]
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(found)]
    size = sum(map(len, (await asyncio.to_thread(counters[model], texts))["input_ids"]))
    return {"object": "list", "model": model, "data": data, "usage": {"prompt_tokens": size, "total_tokens": size}}


@app.post("/search")
async def search(model: Name, query: Text, depth: Depth = 10) -> dict[str, Any]:
    hits = (await queues[model, "search"]([query]))[0][:depth]
    return {"hits": [{"id": hit.document_id, "score": hit.score, "text": hit.text} for hit in hits]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER", help="a model and its name")
    parser.add_argument("--index", action="append", default=[], metavar="NAME=FOLDER", help="an index of that model")
    parser.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default: 8000)")
    parser.add_argument("--queue", type=int, default=4096, help="texts that may wait (default: 4096)")
    args = parser.parse_args()
    for name, folder in (pair.split("=", 1) for pair in args.model):
        model = models[name] = SentenceTransformer(folder, trust_remote_code=True)
        embedder, counters[name] = SentenceTransformerEmbedder(model, name), copy.deepcopy(model.tokenizer)
        queues[name, "query"] = Queue(embedder.embed_queries, args.queue)
        queues[name, "document"] = Queue(embedder.embed_documents, args.queue)
    for name, folder in (pair.split("=", 1) for pair in args.index):
        search_batch = ContextualIndex.load(folder, models[name]).search_batch
        queues[name, "search"] = Queue(lambda texts, run=search_batch: run(texts, depth=MAX_DEPTH), args.queue)
    app.get("/health")(lambda: {"status": "ok", "models": list(models)})
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")
