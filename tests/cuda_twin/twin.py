"""
A CUDA device whose numbers are computed on the CPU: the code paths of a GPU on a machine without one.

1. `guard.cpp`, loaded before torch, makes a CPU build of PyTorch accept the device `cuda:0`.
2. A [`TwinTensor`] says that it is on that device. Its numbers are in a tensor on the CPU.
3. [`CudaTwin`] catches all operations and runs them on these numbers. Operands on two devices raise an error, as on a
   GPU. Whatever makes the host wait for the device is noted with the line of code that asked for it.

The device has a random state of its own. Kernels, speed, memory and streams of a GPU are not imitated.
"""

import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default}
READS_INDEX = {aten.index.Tensor, aten._unsafe_index.Tensor}
WRITES_INDEX = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# The host needs a value, or the size of an output depends on one.
WAITS = {
    aten._local_scalar_dense,
    aten._unique,
    aten._unique2,
    aten.bincount,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten.unique_dim,
}
WAITS_WITH_OVERLOAD = {aten.repeat_interleave.Tensor}

OURS = ("/cde_hf/", "/transformers_modules/")  # the package, and a checkpoint's copy of it

_host_syncs = []  # places, and whether they are ours
_random_state = torch.Generator().manual_seed(0).get_state()  # of the device


class TwinTensor(torch.Tensor):
    """A tensor on `cuda:0` with its numbers on the CPU, in `numbers`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers, requires_grad=False):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device="cuda:0",
            requires_grad=requires_grad,
        )
        tensor.numbers = numbers
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})

    def tolist(self):
        _note_sync("tolist")
        return self.numbers.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __repr__(self):
        return f"TwinTensor({self.numbers!r})"


class CudaTwin(TorchDispatchMode):
    """Context manager in which the device `cuda` exists."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


@contextmanager
def host_syncs(*, only_ours=True):
    """Gives a counter that, when the context ends, holds the syncs that our code asked for: `"file:line kind"`."""
    counter, start = Counter(), len(_host_syncs)
    yield counter
    counter.update(place for place, is_ours in _host_syncs[start:] if is_ours or not only_ours)


def install():
    """Lets the libraries see one CUDA device. To be called once, in a process of its own."""
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else torch.enable_grad()  # no views of wrappers
    torch.__future__.set_swap_module_params_on_conversion(True)  # `module.to` cannot change a tensor's class in place
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(values, device="cuda")` is a copy from the CPU
    answers = {
        "_lazy_init": None,
        "current_device": 0,
        "device_count": 1,
        "empty_cache": None,
        "get_device_capability": (8, 0),
        "get_device_name": "twin",
        "is_available": True,
        "is_bf16_supported": True,
        "is_initialized": True,
        "set_device": None,
        "synchronize": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    torch.cuda.device = lambda device: nullcontext()
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda device=None: _random_state.clone()
        module.get_rng_state_all = lambda: [_random_state.clone()]
        module.set_rng_state = lambda state, device=None: _set_random_state(state)
        module.set_rng_state_all = lambda states: _set_random_state(states[0])
        module.manual_seed = module.manual_seed_all = _seed
    # Otherwise autocast and loss scaling switch themselves off, because the build has no CUDA.
    for module in (torch.cuda.amp.common, torch.amp.autocast_mode):
        module.amp_definitely_not_available = lambda: False


def _set_random_state(state):
    global _random_state
    _random_state = state.clone()


def _seed(seed):
    _set_random_state(torch.Generator().manual_seed(seed).get_state())


@contextmanager
def _random_state_of_the_device():
    """Operations on the CPU draw their random numbers from the state of the device."""
    saved = torch.get_rng_state()
    torch.set_rng_state(_random_state)
    try:
        yield
    finally:
        _set_random_state(torch.get_rng_state())
        torch.set_rng_state(saved)


def _run(operation, args, kwargs):
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    twins = [tensor for tensor in tensors if isinstance(tensor, TwinTensor)]
    device = kwargs.get("device")
    is_on_twin = bool(twins) if device is None else torch.device(device).type == "cuda"
    if twins:
        _check_devices(operation, args, tensors)
    if _is_sync(operation, args, kwargs, tensors, twins, is_on_twin):
        _note_sync(operation._schema.name.removeprefix("aten::"))

    if is_on_twin and device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    kwargs = {**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs
    on_cpu = tree_map(lambda leaf: leaf.numbers if isinstance(leaf, TwinTensor) else leaf, (args, kwargs))
    draws = is_on_twin and torch.Tag.nondeterministic_seeded in operation.tags
    with _random_state_of_the_device() if draws else nullcontext():
        output = operation(*on_cpu[0], **on_cpu[1])
    # An operation in place returns its operand, which must stay the same object.
    operands = {id(tensor.numbers if isinstance(tensor, TwinTensor) else tensor): tensor for tensor in tensors}

    def wrap(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in operands:
            return operands[id(leaf)]
        return TwinTensor(leaf) if is_on_twin else leaf

    return tree_map(wrap, output)


def _check_devices(operation, args, tensors):
    """Raises an error if an operation on the device has an operand on the CPU that is more than a number."""
    if operation in COPIES:
        return
    foreign = [tensor for tensor in tensors if not isinstance(tensor, TwinTensor) and tensor.dim() > 0]
    if operation in READS_INDEX | WRITES_INDEX and isinstance(args[0], TwinTensor):
        values = args[2:3] if operation in WRITES_INDEX else ()  # the index itself may be on the CPU
        foreign = [tensor for tensor in values if not isinstance(tensor, TwinTensor) and tensor.dim() > 0]
    if foreign:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in foreign)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu: "
            f"{operation} at {_place()[0]} got tensors of shape {shapes} on the CPU."
        )


def _is_sync(operation, args, kwargs, tensors, twins, is_on_twin):
    """Whether an operation makes the host wait for the device."""
    if operation is aten._to_copy.default:
        return not kwargs.get("non_blocking", False) and is_on_twin != bool(twins)
    if operation is aten.copy_.default:
        is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return is_blocking and 0 < len(twins) < len(tensors)
    if not twins:
        return False
    if operation in READS_INDEX | WRITES_INDEX:
        index = [each for each in args[1] if each is not None]
        return any(not isinstance(each, TwinTensor) or each.dtype in (torch.bool, torch.uint8) for each in index)
    return operation.overloadpacket in WAITS or operation in WAITS_WITH_OVERLOAD


def _note_sync(kind):
    place, is_ours = _place()
    _host_syncs.append((f"{place} {kind}", is_ours))


def _place():
    """File and line that called torch, and whether they are ours."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path and not path.startswith("<"):
            return f"{Path(path).name}:{frame.f_lineno}", any(part in path for part in OURS)
        frame = frame.f_back
    return "autograd", False
