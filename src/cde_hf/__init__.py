"""cde-hf: contextual document embeddings for Hugging Face, text embeddings that know the corpus they are used on."""

from .modeling import CDEConfig, CDEModel, CDEOutput, ContextBlock, CorpusContext, sample_documents


__version__ = "0.1.0.dev0"

__all__ = [
    "CDEConfig",
    "CDEModel",
    "CDEOutput",
    "ContextBlock",
    "CorpusContext",
    "sample_documents",
]
