"""Short hashes of weights and vectors, which tie a context to the model that made it."""

import hashlib
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn


_SAMPLES_PER_PARAMETER = 4096

_known: WeakKeyDictionary[nn.Module, tuple[tuple[float, ...], str]] = WeakKeyDictionary()


def fingerprint(module: nn.Module) -> str:
    """
    A short hash of the weights of a module, the same in every process.

    It covers a sample of every parameter, rounded to bfloat16. Casting a model from float32 to bfloat16 and back keeps
    the hash; float16 rounds differently and changes it, as does a training step. The result is cached until one probed
    value of a parameter changes.
    """
    # Version counters of the tensors would not do: fused optimizers do not increment them.
    probe = _probe(module)
    if module in _known and _known[module][0] == probe:
        return _known[module][1]
    digest = hashlib.blake2b(digest_size=8)
    for name, weights in module.named_parameters():
        digest.update(f"{name}{tuple(weights.shape)}".encode())
        flat = weights.detach().flatten()
        step = max(1, len(flat) // _SAMPLES_PER_PARAMETER)
        digest.update(_bytes(flat[::step].to(torch.bfloat16).float()))
    _known[module] = (probe, digest.hexdigest())
    return digest.hexdigest()


def is_named(module: nn.Module, name: str | None) -> bool:
    """Whether a fingerprint belongs to a module. `None` matches every module and reads no weights."""
    return name is None or name == fingerprint(module)


def tensor_hash(*tensors: Tensor | None) -> str:
    """A short hash of the contents of tensors. `None` is a distinct value."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(b"none" if tensor is None else f"{tuple(tensor.shape)}".encode() + _bytes(tensor.float()))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def _probe(module: nn.Module) -> tuple[float, ...]:
    # This runs for every batch of texts, so it avoids `module.parameters()`, which is slow.
    values, modules = [], [module]
    with torch.no_grad():
        while modules:
            submodule = modules.pop()
            modules.extend(child for child in submodule._modules.values() if child is not None)
            for parameter in submodule._parameters.values():
                if parameter is not None:
                    values.append(parameter.view(-1)[parameter.numel() // 2])
        return tuple(torch.stack(values).tolist())


__all__ = ["fingerprint", "is_named", "tensor_hash"]
