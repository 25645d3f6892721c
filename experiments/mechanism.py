"""
mechanism: tasks that cannot be solved without reading the context. How soon does a model learn to?

In *common words* each domain has words that are common in it, chosen at random. A text has some of them and some
words of its own, and a query and its document share these alone. Which words are common can be told only from other
documents of the domain.

In *linked words* each domain links every word to another one, and its context documents are these links. A query and
its document share one word, and the others are linked. All words are equally frequent in the context, so what counts
is which words are in one document.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor
from tqdm.auto import tqdm

from cde_hf import CDEConfig, CDEModel

from .runner.experiment import Experiment, Page, Setting
from .runner.table import Row, markdown_table, select, show


BATCH_SIZE, NUM_SPECIAL_TOKENS = 32, 5
KINDS = {
    "joint": {"context_attention": "joint"},
    "prefix": {"context_attention": "prefix"},
    "joint, random head": {"context_attention": "joint", "context_in_token_space": False},
    "prefix, random head": {"context_attention": "prefix", "context_in_token_space": False},
}
CONTEXTS = ("own", "foreign", "none")


@dataclass(frozen=True)
class Domain:
    """Token ids of queries, of their documents in the same order, and of context documents: a row for each text."""

    queries: Tensor
    documents: Tensor
    context: Tensor


@dataclass(frozen=True)
class CommonWords:
    """
    The task: each domain has common words of its own.

    Args:
        num_words (`int`, *optional*, defaults to `64`):
            Words of the language.
        num_common (`int`, *optional*, defaults to `8`):
            Common words of a domain.
        num_in_text (`int`, *optional*, defaults to `6`):
            How many of them a text has.
        num_own (`int`, *optional*, defaults to `1`):
            How many other words a text has. A query and its document share them.
        is_skewed (`bool`, *optional*, defaults to `False`):
            Whether the other words are drawn by Zipf's law, so that some of them are frequent everywhere.
        context_size (`int`, *optional*, defaults to `16`):
            Context documents.
        initializer_range (`float`, *optional*, defaults to `0.02`):
            Standard deviation of a model's first weights.
    """

    num_words: int = 64
    num_common: int = 8
    num_in_text: int = 6
    num_own: int = 1
    is_skewed: bool = False
    context_size: int = 16
    initializer_range: float = 0.02

    def draw(self, generator: torch.Generator) -> Domain:
        """A new domain."""
        words = torch.randperm(self.num_words, generator=generator)
        common, others = words[: self.num_common], words[self.num_common :].sort().values
        weights = 1.0 / (1 + torch.arange(len(others))) if self.is_skewed else torch.ones(len(others))

        def own_words(num_texts: int) -> Tensor:
            drawn = torch.multinomial(weights.expand(num_texts, -1), self.num_own, generator=generator)
            return others[drawn]

        if self.num_own == 1 and not self.is_skewed:  # a different word for each pair
            own = others[torch.randperm(len(others), generator=generator)[:BATCH_SIZE]].unsqueeze(1)
        else:
            own = own_words(BATCH_SIZE)
        texts = partial(self._texts, common, generator=generator)
        return Domain(texts(own), texts(own), texts(own_words(self.context_size)))

    def _texts(self, common: Tensor, own: Tensor, generator: torch.Generator) -> Tensor:
        order = torch.rand(len(own), self.num_common, generator=generator).argsort(dim=1)
        rows = torch.cat([common[order[:, : self.num_in_text]], own], dim=1)
        return _shuffled(rows, generator) + NUM_SPECIAL_TOKENS


@dataclass(frozen=True)
class LinkedWords:
    """
    The task: each domain links words of its own.

    Args:
        num_words (`int`, *optional*, defaults to `32`):
            Words of the language.
        num_in_text (`int`, *optional*, defaults to `3`):
            Words of a text. The query and its document share one, the others are linked.
        initializer_range (`float`, *optional*, defaults to `0.1`):
            Standard deviation of a model's first weights. With smaller weights attention to the right document is not
            found within these steps.
    """

    num_words: int = 32
    num_in_text: int = 3
    initializer_range: float = 0.1

    @property
    def context_size(self) -> int:
        """Context documents: all links."""
        return self.num_words // 2

    def draw(self, generator: torch.Generator) -> Domain:
        """A new domain."""
        links = torch.randperm(self.num_words, generator=generator).view(-1, 2)
        order = torch.rand(BATCH_SIZE, len(links), generator=generator).argsort(dim=1)
        queries, documents = links[order[:, : self.num_in_text]].unbind(dim=2)
        documents = torch.cat([documents[:, 1:], queries[:, :1]], dim=1)
        return Domain(*(_shuffled(rows, generator) + NUM_SPECIAL_TOKENS for rows in (queries, documents, links)))


Task = CommonWords | LinkedWords


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(dim=1))


def build_model(task: Task, fields: dict, seed: int) -> CDEModel:
    """A tiny model with random weights."""
    torch.manual_seed(seed)
    stage = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": task.num_words + NUM_SPECIAL_TOKENS,
        "initializer_range": task.initializer_range,
    }
    stages = {"first_stage_config": stage, "second_stage_config": stage, "initializer_range": task.initializer_range}
    return CDEModel(CDEConfig(**stages, context_size=task.context_size, num_soft_prompts=4, **fields))


def learn(
    model: CDEModel,
    task: Task,
    num_steps: int,
    *,
    seed: int = 0,
    num_points: int = 10,
    report: Callable[[int, dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """
    Trains a model on one new domain per step.

    Args:
        model (`CDEModel`):
            The model.
        task (`CommonWords` or `LinkedWords`):
            The task.
        num_steps (`int`):
            Steps.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the domains.
        num_points (`int`, *optional*, defaults to `10`):
            How often to report.
        report (`Callable`, *optional*):
            Gets the step and the accuracy by context.

    Returns:
        `dict[str, float]`: The accuracy at the end, in percent, by context.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * max(0.02, 1 - step / num_steps)
    )
    generator = torch.Generator().manual_seed(seed)
    for step in tqdm(range(1, num_steps + 1), desc="Learn", unit="step", leave=False):
        model.train()
        domain = task.draw(generator)
        queries, documents = _embed(model, domain, domain.context)
        loss = F.cross_entropy(20 * queries @ documents.T, torch.arange(BATCH_SIZE))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if report is not None and step % max(1, num_steps // num_points) == 0:
            report(step, accuracy(model, task, 20))
    return accuracy(model, task, 60)


@torch.no_grad()
def accuracy(model: CDEModel, task: Task, num_domains: int) -> dict[str, float]:
    """How often the right document of 32 comes first on new domains, in percent, by context."""
    model.eval()
    generator = torch.Generator().manual_seed(1_000_007)
    foreign = task.draw(generator).context
    right = dict.fromkeys(CONTEXTS, 0.0)
    for _ in range(num_domains):
        domain = task.draw(generator)
        for name, context in zip(CONTEXTS, (domain.context, foreign, None), strict=True):
            queries, documents = _embed(model, domain, context)
            is_right = (queries @ documents.T).argmax(dim=1) == torch.arange(BATCH_SIZE)
            right[name] += 100 * is_right.float().mean().item() / num_domains
        foreign = domain.context
    return right


def _embed(model: CDEModel, domain: Domain, context: Tensor | None) -> tuple[Tensor, Tensor]:
    texts = torch.cat([domain.queries, domain.documents])
    queries, documents = F.normalize(model(texts, context_input_ids=context).embeddings, dim=-1).chunk(2)
    return queries, documents


TASKS: dict[str, Task] = {
    "common words": CommonWords(),
    "linked words": LinkedWords(),
    "common words, 7 of 512": CommonWords(num_words=512),
    "common words, 7 of 512, Zipf": CommonWords(num_words=512, is_skewed=True),
    "common words, 14 of 512": CommonWords(num_words=512, num_common=16, num_in_text=12, num_own=2),
    "common words, 28 of 512": CommonWords(num_words=512, num_common=32, num_in_text=24, num_own=4),
}
MAIN_TASKS = ("common words", "linked words")  # tried with all models, the others with prefix attention alone
NUM_STEPS = 4000


def run(setting: Setting) -> list[Row]:
    """Learning curves of all kinds of models on the main tasks, and of prefix attention on harder ones."""
    num_steps = 10 if setting.is_quick else NUM_STEPS
    runs = [(task, kind, seed) for seed in range(setting.num_seeds) for task in MAIN_TASKS for kind in KINDS]
    runs += [(task, "prefix", 0) for task in TASKS if task not in MAIN_TASKS]
    rows: list[Row] = []
    for task, kind, seed in tqdm(runs, desc="Models", unit="model"):
        columns = {"task": task, "model": kind, "seed": seed}

        def add(step: int, right: dict[str, float], columns: Row = columns) -> None:
            rows.extend({**columns, "step": step, "context": name, "accuracy": right[name]} for name in CONTEXTS)

        learn(build_model(TASKS[task], KINDS[kind], seed), TASKS[task], num_steps, seed=seed, report=add)
    return rows


def report(rows: list[Row]) -> Page:
    """The learning curves, and the accuracy at the end."""
    last = max(row["step"] for row in rows)
    lines = []
    for task, kind in dict.fromkeys((row["task"], row["model"]) for row in rows):
        found = select(rows, task=task, model=kind, step=last)
        cells = [show(row["accuracy"] for row in select(found, context=context)) for context in CONTEXTS]
        lines.append([task, kind, *cells])
    finding = "; ".join(
        f"{task}, {kind}: {own} with the own context, {foreign} with a foreign one, {none} without"
        for task, kind, own, foreign, none in lines
        if task in MAIN_TASKS and "random" not in kind
    )
    text = f"""## Setting

In *common words* each domain has 8 common words of 64, chosen at random. A text has 6 of them and one word of its own,
and a query and its document share that word alone. Which words are common can be told only from other documents of the
domain, of which the context has 16.

In *linked words* each domain links the 32 words in pairs, at random, and the 16 context documents are these pairs. A
query has 3 words. Its document has one of these and the words that are linked to the others. Every word is in one
context document, so frequencies tell nothing: what counts is which words are in the same document.

The models have two layers of width 64 and random weights, and see one new domain of 32 pairs in each of {last} steps.
Measured is how often the right document of 32 comes first on new domains, in percent. *foreign*: documents of another
domain. *random head*: context vectors are the output of the first stage's randomly initialised head, as in the
released models. ± is the standard deviation over seeds.

The harder tasks have a larger language, texts with more words, of which a seventh are own ones, or own words drawn by
Zipf's law, so that some are frequent in every domain.

## Accuracy at the end

{markdown_table(["task", "model", *CONTEXTS], lines)}"""
    figures = {task.replace(" ", "_"): plot(select(rows, task=task)) for task in MAIN_TASKS}
    return Page(f"Accuracy in percent. {finding}.", text, figures)


def plot(rows: list[Row]) -> Figure:
    """Accuracy over the steps of training: one panel for each kind of model, one line for each context."""
    kinds = list(dict.fromkeys(row["model"] for row in rows))
    figure, panels = plt.subplots(1, len(kinds), figsize=(3 * len(kinds), 2.8), sharey=True, squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        for context, style in zip(CONTEXTS, ("-", "--", ":"), strict=True):
            for seed in sorted({row["seed"] for row in rows}):
                points = select(rows, model=kind, context=context, seed=seed)
                axes.plot(
                    [row["step"] for row in points],
                    [row["accuracy"] for row in points],
                    style,
                    color=f"C{CONTEXTS.index(context)}",
                    label=context if seed == 0 else None,
                )
        axes.set(title=kind, xlabel="steps")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("accuracy, percent")
    panels[0][0].legend(title="context")
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment(
    "mechanism",
    "A context path that can be learned",
    "A model learns to read the documents of its context where nothing else helps.",
    20,
    run,
    report,
    needs="nothing",
)
