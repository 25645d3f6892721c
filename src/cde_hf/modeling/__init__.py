"""The model, its configuration and its sentence-transformers modules. Checkpoints carry copies of these files."""

from transformers import AutoConfig, AutoModel

from .configuration_cde import CDEConfig
from .context import Context, ContextualModule, sample_documents
from .modeling_cde import CDEModel, CDEOutput
from .pooling import count_token_frequencies


CDEConfig.register_for_auto_class()
CDEModel.register_for_auto_class("AutoModel")
AutoConfig.register(CDEConfig.model_type, CDEConfig)
AutoModel.register(CDEConfig, CDEModel)

__all__ = [
    "CDEConfig",
    "CDEModel",
    "CDEOutput",
    "Context",
    "ContextualModule",
    "count_token_frequencies",
    "sample_documents",
]
