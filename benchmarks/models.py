"""The two model sizes of the benchmarks, with random weights."""

from torch import nn

from cde_hf import CDEConfig, CDEModel


STAGES = {
    "NomicBERT": {"model_type": "nomic_bert"},  # 12 layers of width 768, as in the paper
    "MiniLM": {
        "model_type": "bert",
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}


MODES = {
    "joint": {"context_attention": "joint"},
    "prefix": {"context_attention": "prefix"},
}


def build_models(name: str, context_size: int, num_layers: int | None = None) -> dict[str, CDEModel]:
    """One model per attention mode, with the same weights. The first stage is not measured, so it has one layer."""
    stage = STAGES[name] | ({"num_hidden_layers": num_layers} if num_layers is not None else {})
    models = {}
    for mode, fields in MODES.items():
        config = CDEConfig(
            first_stage_config=stage | {"num_hidden_layers": 1},
            second_stage_config=stage,
            context_size=context_size,
            **fields,
        )
        models[mode] = CDEModel(config).eval()
    models["prefix"].load_state_dict(models["joint"].state_dict(), strict=False)
    # They are zero-initialised, and zeros would distort the timing.
    for projection in models["prefix"].second_stage_model.context_value_projections:
        nn.init.normal_(projection.weight, std=0.02)
    return models
