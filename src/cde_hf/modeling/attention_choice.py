"""
Which attention implementation a stage runs with: the one that the user asked for, or else the best one there is.

A backbone's configuration holds the name of its attention function. One of transformers' own names is the user's
wish, by `attn_implementation=` or `set_attn_implementation`. Where there was no wish the name is one of ours that says
so, and the choice is made anew before each run: a model may have been moved or cast since, or run under autocast.
"""

import hashlib
import re

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import is_flash_attn_2_available, is_torch_flex_attn_available
from transformers.utils.import_utils import is_triton_available

from .backbones import build_backbone, has_local_layers


# The names are global in a process, but each checkpoint has its own copy of this code.
WISHED_PREFIX = f"cde_{hashlib.blake2b(__name__.encode(), digest_size=4).hexdigest()}_"
CHOSEN_PREFIX = f"{WISHED_PREFIX}chosen_"


def build_stage_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """Builds the backbone of a stage, and notes in its configuration whether the user asked for an implementation."""
    wish = wished_attention(config._attn_implementation)
    config._attn_implementation = wish
    backbone = build_backbone(config)
    if wish is None:
        config._attn_implementation_internal = f"{CHOSEN_PREFIX}sdpa"
    return backbone


def wished_attention(name: str | None) -> str | None:
    """
    The implementation of transformers that the user asked for, if any.

    Example:

    ```python
    >>> wished_attention("cde_01234567_eager"), wished_attention("eager"), wished_attention("cde_01234567_chosen_sdpa")
    ('eager', 'eager', None)

    ```
    """
    ours = re.fullmatch(r"cde_[0-9a-f]{8}_(chosen_)?(.*)", name or "")
    if ours is None:
        return name
    return None if ours[1] else ours[2]


def choose_attention(backbone: PreTrainedModel, *, shows_context: bool) -> None:
    """
    Chooses the implementation of the run to come, if the user left the choice.

    Args:
        backbone (`PreTrainedModel`):
            Backbone of a stage.
        shows_context (`bool`):
            Whether text tokens see a context in every layer, as in the second stage.
    """
    # A compiled run keeps the last choice: the questions below are none for a compiler.
    if not backbone.config._attn_implementation.startswith(CHOSEN_PREFIX) or torch.compiler.is_compiling():
        return
    weight = backbone.get_input_embeddings().weight
    device, dtype = weight.device, weight.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    name = best_attention(backbone.config, device, dtype, shows_context=shows_context, is_training=backbone.training)
    backbone.config._attn_implementation_internal = CHOSEN_PREFIX + name


def best_attention(
    config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, *, shows_context: bool, is_training: bool
) -> str:
    """
    The fastest implementation that is installed, runs on the device and gives the right numbers.

    Args:
        config (`PreTrainedConfig`):
            Configuration of a backbone.
        device (`torch.device`):
            Where it runs.
        dtype (`torch.dtype`):
            Precision of its matrix products.
        shows_context (`bool`):
            Whether text tokens see a context in every layer.
        is_training (`bool`):
            Whether dropout is active.

    Returns:
        `str`: `"flash_attention_2"`, `"flex_attention"` or `"sdpa"`.
    """
    # Flash-attention knows windows, but no window that all tokens of a context are near to.
    if shows_context and has_local_layers(config):
        has_dropout = is_training and config.attention_dropout > 0  # of which flex-attention knows nothing
        return "flex_attention" if runs_flex_attention(device) and not has_dropout else "sdpa"
    return "flash_attention_2" if runs_flash_attention(device, dtype) else "sdpa"


def runs_flash_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether flash-attention is installed and has a kernel for this precision and GPU (from Ampere on)."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    if device.type != "cuda" or not is_half or not is_flash_attn_2_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def runs_flex_attention(device: torch.device) -> bool:
    """Whether flex-attention can be compiled for this GPU."""
    return device.type == "cuda" and is_torch_flex_attn_available() and is_triton_available()


__all__ = [
    "CHOSEN_PREFIX",
    "WISHED_PREFIX",
    "best_attention",
    "build_stage_backbone",
    "choose_attention",
    "wished_attention",
]
