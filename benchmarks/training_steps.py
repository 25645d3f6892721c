"""Training steps for the benchmarks of time and memory, with random weights and random tokens."""

import argparse
from collections.abc import Callable

import torch
from torch import nn
from transformers import AutoModel, NomicBertConfig

from cde_hf import CDEConfig, CDEModel, filtered_info_nce
from cde_hf.trainer import GradientCache
from cde_hf.trainer.step import Encoder, MiniBatchSize, Step, Texts, embed_plainly


VOCAB_SIZE = 30_528
KINDS = {
    "biencoder": None,
    "prefix": {"context_attention": "prefix"},
    "joint": {"context_attention": "joint"},
}


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that define a step."""
    parser.add_argument("--layers", type=int, default=2, help="layers of each stage (default: 2)")
    parser.add_argument("--width", type=int, default=128, help="width of each stage (default: 128)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a text (default: 64)")
    parser.add_argument("--context-size", type=int, default=64, help="context documents (default: 64)")
    parser.add_argument("--mini-batch-size", type=int, default=32, help="texts in a mini-batch (default: 32)")
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[64, 256, 512, 1024], help="pairs in a batch, in ascending order"
    )
    parser.add_argument(
        "--max-plain-batch-size", type=int, default=512, help="largest batch without caching (default: 512)"
    )


def build_model(kind: str, args: argparse.Namespace) -> nn.Module:
    """A NomicBERT biencoder, or a contextual model of two of them."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": args.width,
        "intermediate_size": 4 * args.width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": max(1, args.width // 64),
    }
    if kind == "biencoder":
        return AutoModel.from_config(NomicBertConfig(**sizes)).train()
    config = CDEConfig(
        first_stage_config=sizes, second_stage_config=sizes, context_size=args.context_size, **KINDS[kind]
    )
    return CDEModel(config).train()


def make_step(batch_size: int, args: argparse.Namespace) -> Step:
    """Random queries and documents of one length, the first documents being the context."""
    ids = torch.randint(1000, VOCAB_SIZE, (2 * batch_size, args.length))
    texts = Texts(ids, torch.ones_like(ids), [args.length] * len(ids))
    return Step(texts, batch_size, texts[batch_size : batch_size + min(batch_size, args.context_size)])


def run_step(model: nn.Module, step: Step, mini_batch_size: int | None) -> None:
    """Loss and gradients of one step, plain if there are no mini-batches."""
    encoder = Encoder(model, model)

    def loss_function(embeddings):
        queries, documents = embeddings.split(step.num_queries)
        return filtered_info_nce(queries, documents, logit_scale=50.0)

    if mini_batch_size is None:
        output = loss_function(embed_plainly(encoder, step))
    else:
        size = MiniBatchSize(mini_batch_size)
        cache = GradientCache(encoder, mini_batch_size=size, context_mini_batch_size=size)
        output = cache.compute_loss(step, loss_function)
    output.loss.backward()
    model.zero_grad()


def sentence_transformers_step(model: nn.Module, step: Step, mini_batch_size: int) -> Callable[[], None]:
    """The same step by `CachedMultipleNegativesRankingLoss`, around the same backbone."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    class Tokens(nn.Module):
        """Mean of the token vectors, as a module of sentence-transformers."""

        def __init__(self):
            super().__init__()
            self.encoder = model

        def forward(self, features, **kwargs):
            output = self.encoder(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
            features["sentence_embedding"] = output.last_hidden_state.mean(dim=1)
            return features

    loss = CachedMultipleNegativesRankingLoss(
        SentenceTransformer(modules=[Tokens()], device="cpu"), scale=50.0, mini_batch_size=mini_batch_size
    )
    sides = (slice(step.num_queries), slice(step.num_queries, None))

    def run() -> None:
        features = [
            {"input_ids": step.texts.input_ids[side], "attention_mask": step.texts.attention_mask[side]}
            for side in sides
        ]
        loss(features, None).backward()
        model.zero_grad()

    return run
