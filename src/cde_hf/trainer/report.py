"""Reports on a training run: the pairs, the expected time, and the scores before and after."""

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from ..batching import batch_statistics
from ..contextual_models import contextualize
from ..data import PairFacts, RetrievalSet
from ..evaluation import ContextualModelEmbedder, Evaluation, Row, evaluate
from ..messages import count_of, say
from ..model_names import model_path
from ..modeling import ContextualModule, sample_documents
from ..modeling.frequency_pooling import MAX_DOCUMENTS
from .evaluation import make_embedder
from .models import is_contextual_checkpoint
from .sizes import TextLengths, count_steps, estimate_seconds
from .trainer import ContextualContrastiveTrainer


BEFORE, AFTER = "before", "after"
_CORPUS = "corpus"
_WEAK_SHARE = 0.15
_NUM_COMPARED_DOCUMENTS = 1000
_NUM_COMPARED_ENDINGS = 100


class TrainingReport:
    """
    Prints a report before and after training.

    Args:
        trainer (`ContextualContrastiveTrainer`):
            The trainer, before the training.
        name (`str`):
            Name or folder of the model that is trained.
        facts (`PairFacts`):
            What the pairs look like.
        lengths (`TextLengths`):
            Lengths of their texts.
        tested (`RetrievalSet`, *optional*):
            The held-out queries. Without them the report has no scores.
        corpus (`Sequence[str]`, *optional*):
            The documents of the corpus.
    """

    def __init__(
        self,
        trainer: ContextualContrastiveTrainer,
        name: str,
        facts: PairFacts,
        lengths: TextLengths,
        tested: RetrievalSet | None,
        corpus: Sequence[str] | None,
    ):
        self.trainer = trainer
        self.name = name
        self.facts = facts
        self.lengths = lengths
        self.tested = tested
        self.corpus = corpus
        self._before: Evaluation | None = None
        self._own_form = ""

    def begin(self) -> None:
        """Says what the pairs look like and how long the training takes, and scores the model before it."""
        args, plan = self.trainer.args, self.trainer.batch_plan
        say(str(self.facts))
        say(
            f"On average a query has {self.lengths.query:.0f} tokens and a document {self.lengths.document:.0f}. "
            f"Texts are cut to {self.trainer.max_length}."
        )
        if args.per_device_train_batch_size <= len(plan):
            self._warn_of_false_negatives()
        if self.corpus is not None:
            self._compare_with_corpus(self.corpus)
        num_steps = count_steps(args, len(plan))
        seconds = estimate_seconds(args, self.trainer.model, self.lengths, num_steps, self.tested)
        batch = count_of(args.per_device_train_batch_size, "pair")
        say(f"Training takes {count_of(num_steps, 'step')} of {batch}: about {_duration(seconds)}.")
        num_seen = num_steps * args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        if num_seen < len(plan) - args.per_device_train_batch_size:
            say(f"That is {num_seen / len(plan):.0%} of the pairs. `--num-train-epochs 1` trains on all of them.")
        if self.tested is None:
            say("No queries are held out, so nothing will show whether training helps, except scores of your own.")
            return
        model = self._model_before()
        self._own_form = _describe_form(model)
        self._before = self._score(BEFORE, model, self.tested)
        say(f"\nOn {count_of(len(self.tested.queries), 'held-out query')}, before the training:\n")
        say(self._before.to_markdown() + self._own_form)

    def end(self) -> None:
        """Scores the trained model, and says how much it gained and how to use it."""
        folder, code = self.trainer.args.output_dir, ", trust_remote_code=True" if self.trainer.is_contextual else ""
        after = None
        if self.tested is not None and self._before is not None:
            model = SentenceTransformer(
                folder, trust_remote_code=self.trainer.is_contextual, device=str(self.trainer.args.device)
            )
            after = self._score(AFTER, model, self.tested)
            text = describe(self._before, after, self.trainer.ends_with_start, self.trainer.is_contextual)
            say(text + self._own_form)
        say(
            f"Wrote {folder}: load it with SentenceTransformer('{folder}'{code}). It reads the first "
            f"{self.trainer.max_length} tokens of a text, as in the training (`--max-length`)."
        )
        if self.corpus is not None:
            say(use_of_corpus(after, folder, needs_trust=self.trainer.is_contextual))

    def _warn_of_false_negatives(self) -> None:
        args = self.trainer.args
        statistics = batch_statistics(self.trainer.batch_plan, args.per_device_train_batch_size, args.batch_grouping)
        share, ending = statistics["filtered_share"], " and are left out" if args.filter_false_negatives else ""
        say(f"In a batch, {share:.0%} of the negatives may be right answers{ending}.")
        if share > _WEAK_SHARE or self.facts.has_many_answers:
            reason = "queries have several answers" if self.facts.has_many_answers else "many negatives look right"
            shown = ", which the held-out queries will show" if self.tested is not None else ""
            say(
                f"These labels look weak: {reason}, and answers may be missing from the pairs. They can make a good "
                f"model worse{shown}."
            )

    def _compare_with_corpus(self, corpus: Sequence[str]) -> None:
        """Says how many of the pairs' documents the corpus has."""
        pairs: Any = self.trainer.train_dataset
        documents = pairs["document"]
        step = max(1, len(documents) // _NUM_COMPARED_DOCUMENTS)
        sample = {documents[place].strip() for place in range(0, len(documents), step)}
        share = len(sample & {text.strip() for text in corpus if text.strip() in sample}) / len(sample)
        some = tuple(sorted(sample)[:_NUM_COMPARED_ENDINGS])
        if share == 0 and any(text.strip().endswith(some) for text in corpus):
            say(
                "The corpus has the pairs' documents with titles in front, which makes them other documents, so the "
                "scores are too low. Put the titles into the pairs too, or name the column of the texts alone with "
                "`--text-column`."
            )
        elif share == 0:
            say(
                "None of the pairs' documents are in the corpus. Check `--corpus`: training on documents of another "
                "corpus helps less."
            )
        else:
            say(
                f"The corpus has {count_of(len(corpus), 'document')}, with {share:.0%} of the pairs' documents among "
                "them."
            )

    def _model_before(self) -> SentenceTransformer:
        trainer = self.trainer
        path = model_path(self.name)
        if is_contextual_checkpoint(path):
            return make_embedder(
                trainer.model,
                trainer.processing_class,
                prompts=trainer.prompts,
                max_length=trainer.max_length,
                batch_size=trainer.args.per_device_eval_batch_size,
            ).model
        model = SentenceTransformer(
            path, prompts=trainer.prompts.for_sentence_transformers(), device=str(trainer.args.device)
        )
        model.max_seq_length = trainer.max_length
        model.similarity_fn_name = "cosine"
        return model

    def _score(self, name: str, model: SentenceTransformer, tested: RetrievalSet) -> Evaluation:
        embedder = ContextualModelEmbedder(contextualize(model, None), name)
        corpus = {}
        if self.corpus is not None:
            corpus = {_CORPUS: sample_documents(self.corpus, MAX_DOCUMENTS, seed=self.trainer.args.seed)}
        return evaluate([embedder], [tested], contexts=["none"], other_contexts=corpus)


def _describe_form(model: SentenceTransformer) -> str:
    """Says what the training leaves out of a model, of which it trains the mean of the token vectors."""
    kept = (Transformer, Pooling, Normalize, ContextualModule)
    left_out = [f"a `{type(each).__name__}`" for each in model if not isinstance(each, kept)]
    left_out += [
        f"pooling by {each.pooling_mode!r}" for each in model if getattr(each, "pooling_mode", "mean") != "mean"
    ]
    if not left_out:
        return ""
    return (
        f"\n`{BEFORE}` is the model unchanged, with {' and '.join(left_out)}. What is trained and saved is its "
        "encoder with the mean of the token vectors.\n"
    )


def use_of_corpus(after: Evaluation | None, folder: str, *, needs_trust: bool) -> str:
    """Says how to adapt the trained model to the corpus, unless the held-out queries show that this does harm."""
    if after is not None:
        comparison = after.compare(Row(AFTER, "none"), Row(AFTER, _CORPUS))
        if comparison.is_significant and comparison.difference < 0:
            return "The held-out queries are answered worse with the corpus than without: use the model unchanged."
    option = " --trust-remote-code" if needs_trust else ""
    return f"Give it your corpus: cde-hf contextualize {folder} CORPUS {folder}-with-corpus{option}"


def describe(before: Evaluation, after: Evaluation, ends_with_start: bool, is_contextual: bool = False) -> str:
    """A table of both evaluations, and what it says."""
    both = before.join(after)
    first, second = Row(BEFORE, "none"), Row(AFTER, "none")
    table = both.to_markdown(baseline=first)
    if ends_with_start:
        return f"{table}\nTraining did not help on the held-out queries: the model keeps the weights of the start.\n"
    comparison = both.compare(first, second)
    note = " This is without a context. The best state was chosen by its score with one." if is_contextual else ""
    verdict = "" if comparison.is_significant else ", which may be chance"
    return (
        f"{table}\n* differs significantly from the first row. Training changed NDCG@10 by "
        f"{100 * comparison.difference:+.1f} (p = {comparison.p_value:.2g}){verdict}.{note}\n"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return count_of(max(1, round(seconds)), "second")
    return f"{round(seconds / 60):,} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"


__all__ = ["TrainingReport", "describe", "use_of_corpus"]
