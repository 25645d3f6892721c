"""The first stage: one vector per context document."""

import torch
from torch import Tensor, nn

from .backbones import build_backbone, mean_of_tokens
from .configuration_cde import CDEConfig


class FirstStage(nn.Module):
    """Embeds context documents one by one."""

    def __init__(self, config: CDEConfig):
        super().__init__()
        hidden_size = config.first_stage_config.hidden_size
        self.backbone = build_backbone(config.first_stage_config)
        # The last layer also brings the vectors to the second stage's width.
        self.output_projection = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.Linear(hidden_size, config.hidden_size)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """
        Embeds context documents.

        Args:
            input_ids (`torch.Tensor` of shape `(num_documents, sequence_length)`):
                Token ids.
            attention_mask (`torch.Tensor` of shape `(num_documents, sequence_length)`, *optional*):
                Zero at padding. Defaults to ones.

        Returns:
            `torch.Tensor` of shape `(num_documents, hidden_size)`: One vector per document.
        """
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden_states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.output_projection(mean_of_tokens(hidden_states, attention_mask))


__all__ = ["FirstStage"]
