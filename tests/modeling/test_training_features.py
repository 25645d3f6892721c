"""bfloat16, int8, gradient checkpointing and `torch.compile`: the same numbers by other means."""

import shutil

import pytest
import torch
from torch.utils._pytree import tree_map

from cde_hf import Context


FAMILIES = ["nomic_bert", "modernbert", "bert"]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=["joint", "prefix"])
def mode(request):
    return request.param


def gradients(model, texts, context_documents):
    model.zero_grad()
    torch.manual_seed(5)
    model(*texts, *context_documents).embeddings.pow(2).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_gradient_checkpointing_gives_the_same_gradients(make_model, family, mode, texts, context_documents):
    model = make_model(family, context_attention=mode, sequence_dropout_prob=0.3).train()
    expected = gradients(model, texts, context_documents)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    runs = []
    model.second_stage_model.backbone.register_forward_hook(lambda *_: runs.append("forward"))
    layer_runs = []
    first_layer = next(
        m for m in model.second_stage_model.backbone.modules() if type(m).__name__.endswith("Attention")
    )
    first_layer.register_forward_hook(lambda *_: layer_runs.append("layer"))
    checkpointed = gradients(model, texts, context_documents)
    assert len(layer_runs) == 2 * len(runs)  # it really ran again in the backward pass
    for name in expected:
        torch.testing.assert_close(checkpointed[name], expected[name], atol=1e-5, rtol=1e-4)


def test_reentrant_checkpointing_is_refused_in_prefix_attention(make_model, texts, context_documents):
    model = make_model(context_attention="prefix").train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="'use_reentrant': False"):
        model(*texts, *context_documents)


def test_bfloat16_is_close_to_float32(make_model, family, mode, texts, context_documents):
    model = make_model(family, context_attention=mode, pooling="context_frequency")
    expected = model(*texts, *context_documents).embeddings
    output = model.to(torch.bfloat16)(*texts, *context_documents)
    assert output.embeddings.dtype == torch.bfloat16
    assert torch.cosine_similarity(output.embeddings.float(), expected).min() > 0.98
    output.embeddings.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_autocast_is_close_to_float32(make_model, mode, texts, context_documents):
    model = make_model(context_attention=mode)
    expected = model(*texts, *context_documents).embeddings
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model(*texts, *context_documents).embeddings
    assert torch.cosine_similarity(embeddings.float(), expected).min() > 0.98


@pytest.mark.filterwarnings("ignore")  # of the move of quantization to another package
def test_a_quantized_second_stage_is_close_to_float32(make_model, mode, texts, context_documents):
    model = make_model(context_attention=mode, pooling="context_frequency")
    expected = model.encode_texts(*texts, context=model.encode_context(*context_documents))
    model.second_stage_model = torch.ao.quantization.quantize_dynamic(model.second_stage_model, {torch.nn.Linear})
    assert model.second_stage_model.output_projection[0].weight().dtype == torch.qint8
    embeddings = model.encode_texts(*texts, context=model.encode_context(*context_documents))
    assert torch.cosine_similarity(embeddings, expected).min() > 0.95


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
def test_compiled_stages_give_the_same_numbers(make_model, family, mode, texts, context_documents):
    # A context that is longer than the texts, so that prefix attention merges.
    model = make_model(family, context_attention=mode, pooling="context_frequency", context_size=70)
    expected = model.first_stage_model(*context_documents)
    torch.testing.assert_close(torch.compile(model.first_stage_model)(*context_documents), expected, atol=1e-5, rtol=0)
    block = model.second_stage_model.encode_block(expected.detach()) if mode == "prefix" else None
    context = Context(expected.detach(), torch.rand(100), block)
    expected = model.second_stage_model(*texts, context=context)
    compiled = torch.compile(model.second_stage_model)(*texts, context=context)
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=0)


class WithContext(torch.nn.Module):
    """A second stage whose context is a tensor, or the tensors of a context block."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, input_ids, attention_mask, token_frequencies, context):
        is_block = isinstance(context, tuple)
        parts = {"keys_values": context} if is_block else {"embeddings": context}
        return self.stage(input_ids, attention_mask, context=Context(token_frequencies=token_frequencies, **parts))


@pytest.fixture
def second_stage(make_model, family, mode, context_documents):
    """A second stage, its token frequencies and its context."""
    model = make_model(family, context_attention=mode, pooling="context_frequency")
    with torch.no_grad():
        context = model.encode_context(*context_documents)
    return WithContext(model.second_stage_model), torch.rand(100), context.keys_values or context.embeddings


def test_the_second_stage_compiles_without_graph_breaks(second_stage, texts):
    stage, *context = second_stage
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(stage, fullgraph=True, backend="eager", dynamic=True)
        for rows, length in ((4, 17), (3, 11), (2, 5)):
            inputs = [tensor[:rows, :length].contiguous() for tensor in texts]
            torch.testing.assert_close(compiled(*inputs, *context), stage(*inputs, *context), atol=1e-5, rtol=0)


def test_the_second_stage_can_be_exported(second_stage, texts):
    stage, *context = second_stage
    sizes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("length", max=64)}
    with torch.no_grad():
        shapes = (sizes, sizes, *tree_map(lambda tensor: None, context))
        program = torch.export.export(stage, (*texts, *context), dynamic_shapes=shapes)
        others = [tensor[:3, :11].contiguous() for tensor in texts]
        torch.testing.assert_close(program.module()(*others, *context), stage(*others, *context), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
def test_a_compiled_model_trains(make_model, mode, texts, context_documents):
    model = make_model(context_attention=mode, sequence_dropout_prob=0.0, context_size=70).train()
    expected = gradients(model, texts, context_documents)
    compiled = torch.compile(model)
    model.zero_grad()
    compiled(*texts, *context_documents).embeddings.pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        scale = max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-4 * scale, rtol=0)
