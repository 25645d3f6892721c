"""Scores models on labelled texts by classification and clustering, unless it was done before."""

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cde_hf import choose_documents, classification_accuracy, clustering_v_measure

from .config import hash_of, source_fingerprint
from .files import write_json
from .scoring import SOURCE_FOLDERS, load_system, system_fingerprint
from .workspace import Workspace


LabelledScores = dict[str, dict[str, dict[str, float]]]  # by context, set and task, in percent


@dataclass(frozen=True)
class LabelledSet:
    """
    Texts and their labels; those in odd places are tested on, the others trained on and shown as context.

    Args:
        name (`str`):
            Name of the set.
        texts (`tuple[str, ...]`):
            The texts.
        labels (`tuple[str, ...]`):
            Their labels, each at least once in an even and once in an odd place.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


def read_labelled_sets(path: Path, *, max_texts: int, seed: int = 0) -> list[LabelledSet]:
    """
    Reads the queries of a file of pairs, labelled by their subdomain `SET/LABEL`.

    Args:
        path (`Path`):
            The file, gzipped JSON lines.
        max_texts (`int`):
            Texts to draw of a label, an even number of them.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draw.
    """
    texts: dict[str, dict[str, list[str]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            name, _, label = row["subdomain"].partition("/")
            texts.setdefault(name, {}).setdefault(label, []).append(row["query"])
    generator = random.Random(seed)
    sets = []
    for name, labels in sorted(texts.items()):
        drawn = []
        for label, own in sorted(labels.items()):
            num_texts = min(max_texts, len(own)) // 2 * 2
            drawn += [(text, label) for text in generator.sample(own, num_texts)]
        sets.append(LabelledSet(name, *zip(*drawn, strict=True)))
    return sets


def score_labelled(
    workspace: Workspace,
    folder: str | Path,
    kind: str,
    sets: Sequence[LabelledSet],
    *,
    contexts: Sequence[str],
    context_size: int,
    max_length: int,
    num_draws: int,
) -> LabelledScores:
    """
    Accuracy of a logistic regression and V-measure of k-means on a model's vectors, as mteb has them.

    Args:
        workspace (`Workspace`):
            Where scores are kept.
        folder (`str` or `Path`), kind (`str`):
            The model, as for `score_model`.
        sets (`Sequence[LabelledSet]`):
            The texts.
        contexts (`Sequence[str]`):
            `"own"`, texts of the set that are not tested on; `"foreign"`, such texts of the next set; `"none"`.
        context_size (`int`):
            Texts in a context.
        max_length (`int`):
            Tokens to read of a text.
        num_draws (`int`):
            Draws of training texts, and of texts to cluster.
    """
    identity = [[asdict(each) for each in sets], list(contexts), context_size, max_length, num_draws]
    name = f"labelled-{system_fingerprint(folder, kind)}-{hash_of([identity, source_fingerprint(SOURCE_FOLDERS)])}"
    path = workspace.runs / "scores" / f"{name}.json"
    if not path.exists():
        system = load_system(folder, kind, max_length)
        shown = [choose_documents(each.texts[::2], context_size) for each in sets]
        scores: LabelledScores = {context: {} for context in contexts}
        for number, labelled_set in enumerate(sets):
            documents = {"own": shown[number], "foreign": shown[(number + 1) % len(sets)], "none": None}
            for context in contexts:
                if hasattr(system, "set_context"):
                    system.set_context(documents[context])
                vectors, labels = system.embed_documents(labelled_set.texts), labelled_set.labels
                accuracy = classification_accuracy(
                    vectors[::2], labels[::2], vectors[1::2], labels[1::2], num_draws=num_draws
                )
                v_measure = clustering_v_measure(vectors[1::2], labels[1::2], num_draws=num_draws)
                scores[context][labelled_set.name] = {
                    "classification": 100 * accuracy.mean,
                    "clustering": 100 * v_measure.mean,
                }
        write_json(path, scores)
    return json.loads(path.read_text(encoding="utf-8"))
