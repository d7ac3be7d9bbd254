"""A simulated accelerator, ``sim``: a device with the memory of the CPU, and what it would cost.

``install()`` registers it in a process without an accelerator. Call it before the first backward
pass: torch then starts the threads of all devices, and processes can no longer be forked. Tensors
on ``sim`` are ordinary tensors, with real strides, views and autograd. An operator that mixes them
with tensors of the CPU raises RuntimeError as on CUDA.

``record()`` counts what takes time on a GPU:

    with record() as costs:
        loss = model(**batch).loss
    costs.waits      the host waits for a value or a size: ``.item()``, ``nonzero``, a copy to it
    costs.uploads    copies of the host's memory to the device
    costs.kernels    operators that run on the device, by name

A wait or an upload is counted by the code that caused it. An upload with ``non_blocking`` from
pinned memory is marked as such: others make the host wait, too.

accelerate and ``transformers.Trainer`` use the device if ``ACCELERATE_TORCH_DEVICE`` is ``sim``.

Not simulated: speed, the rounding of a GPU, streams, NCCL, code for ``device.type == "cuda"``. A
kernel is an operator of ATen, so that attention is several of them, and code in the backward pass
that waits is only known as ``backward``.

How: DLPack describes a tensor of the CPU with another device. Each operator runs on such aliases of
its arguments in the memory of the CPU.
"""

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "sim"
aten = torch.ops.aten

# -- what an operator costs -----------------------------------------------------------------------

WAITS = {
    "_linalg_check_errors", "_linalg_eigh", "_local_scalar_dense", "_unique", "_unique2",
    "bincount", "equal", "is_nonzero", "linalg_eig", "masked_select", "multinomial", "nonzero",
    "unique_consecutive", "unique_dim", "unique_dim_consecutive",
}  # fmt: skip
"""Operators for which the host waits: it needs a value, or the size of the result."""

NO_KERNELS = {
    "_local_scalar_dense", "_reshape_alias", "alias", "as_strided", "detach", "empty",
    "empty_strided", "expand", "is_set_to", "lift", "lift_fresh", "permute", "resize_", "select",
    "set_", "slice", "t", "transpose", "unfold", "view", "view_as_complex", "view_as_real",
}  # fmt: skip
"""Views, and operators that only allocate memory."""

MIXES_DEVICES = {
    "_copy_from", "_copy_from_and_resize", "_index_put_impl_", "_to_copy", "_unsafe_index",
    "_unsafe_index_put", "copy_", "index", "index_put", "index_put_", "set_",
}  # fmt: skip
"""Operators whose tensors may be on two devices: copies, and those with an index on the CPU."""

NO_INTEGERS = {"_addmm_activation", "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "mm"}
"""Operators that CUDA has for floats only."""

NOT_DETERMINISTIC = {
    "_upsample_bilinear2d_aa_backward", "bincount", "histc", "kthvalue", "median",
    "nll_loss2d_forward", "put_", "upsample_bicubic2d_backward", "upsample_bilinear2d_backward",
    "upsample_linear1d_backward", "upsample_trilinear3d_backward",
}  # fmt: skip
"""Operators that raise on CUDA under ``torch.use_deterministic_algorithms``, by its page."""


@dataclass(frozen=True)
class Costs:
    """What ran on the device, counted by cause (waits and uploads) or by operator (kernels)."""

    waits: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)

    def since(self, before: "Costs") -> "Costs":
        """Return what was added to an earlier copy of these costs."""
        return Costs(
            self.waits - before.waits, self.uploads - before.uploads, self.kernels - before.kernels
        )

    def copy(self) -> "Costs":
        """Return these costs as they are now."""
        return self.since(Costs())

    def totals(self) -> dict[str, int]:
        """Return the numbers of waits, uploads and kernels."""
        return {name: counts.total() for name, counts in vars(self).items()}


_recording: list[Costs] = []


@contextlib.contextmanager
def record() -> Iterator[Costs]:
    """Count what runs on the device in all threads, until the context ends."""
    costs = Costs()
    _recording.append(costs)
    try:
        yield costs
    finally:
        _recording.remove(costs)


def _add(kind: str, what: str) -> None:
    if _recording:
        cause = what if kind == "kernels" else f"{what} {_cause()}"
        for costs in _recording:
            getattr(costs, kind)[cause] += 1


def _cause() -> str:
    """Return the innermost code outside torch, and that of the project which called it."""
    frame, inner = sys._getframe(2), ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path:
            short = path.rpartition("site-packages/")[2].rpartition("/mm_numeric/")[2]
            here = f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
            inner = inner or here
            if "/mm_numeric/" in path:
                return here if here == inner else f"{here} > {inner}"
        frame = frame.f_back
    return inner or "backward"


def _check(name: str, tensors: list[Tensor], args: Any, kwargs: Any) -> None:
    """Count an operator, and raise what it raises on CUDA."""
    own = [tensor for tensor in tensors if tensor.device.type == NAME]
    is_index = "index" in name and name in MIXES_DEVICES
    if is_index and args[0].device.type == NAME:  # the indices may be on the CPU, the values not
        others = [value for value in args[2:3] if isinstance(value, Tensor)]
    else:
        others = tensors if own and (is_index or name not in MIXES_DEVICES) else []
    if any(other.device.type == "cpu" and other.dim() for other in others):
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, {NAME}:0 and cpu; shapes {[tuple(t.shape) for t in tensors]}"
        )
    is_float = not own or own[0].is_floating_point() or own[0].is_complex()
    if name in NO_INTEGERS and not is_float:
        raise RuntimeError(f"{name} is not implemented for {own[0].dtype} on CUDA")
    if torch.are_deterministic_algorithms_enabled() and (
        name in NOT_DETERMINISTIC or (name == "cumsum" and own and is_float)
    ):
        raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA")
    if name.removesuffix("_copy") not in NO_KERNELS:
        _add("kernels", name)
    if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _add("waits", name)
    elif is_index and "put" in name:  # for the others, torch calls nonzero and copies indices
        indices = [index for index in args[1] if index is not None]
        has_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if has_mask and (len(indices) > 1 or args[2].numel() > 1):  # else it is masked_fill
            _add("waits", f"{name} with a mask")
        for _ in (index for index in indices if index.device.type == "cpu" and index.dim()):
            _add("uploads", "blocking, as an index of")


# -- how an operator runs -------------------------------------------------------------------------

_CPU, _EXTENSION = 1, 12  # kDLCPU and kDLExtDev, which is PrivateUse1, in DLPack
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _relabelled(device_type: int, tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory on another device."""
    capsule = torch._C._to_dlpack(tensor.resolve_conj().resolve_neg())
    # DLTensor begins with the address of the data, and the type of the device.
    offset = ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + offset).value = device_type
    return torch._C._from_dlpack(capsule)


_host, _device = partial(_relabelled, _CPU), partial(_relabelled, _EXTENSION)


@cache
def _schema(op: Any) -> tuple[str, bool, list[int]]:
    """Return the name of an operator, whether it writes to tensors, and which need to be made.

    For some operators, torch passes a number in place of the tensor that it has made of it.
    """
    name, arguments = op._schema.name.partition("::")[2], op._schema.arguments
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    if torch._C._should_allow_numbers_as_tensors(name):
        return name, writes, []
    return name, writes, [i for i, a in enumerate(arguments) if str(a.type) == "Tensor"]


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU aliases of its tensors."""
    name, writes, places = _schema(op)
    for i in places:
        if i < len(args) and isinstance(args[i], int | float):
            dtype = torch.result_type(next(_each(args)), args[i])
            args = (*args[:i], torch.tensor(args[i], dtype=dtype), *args[i + 1 :])
    tensors = [*_each(args), *_each(list(kwargs.values()))]
    _check(name, tensors, args, kwargs)
    originals: dict[int, tuple[Tensor, Tensor, torch.Size]] = {}

    def alias(tensor: Tensor) -> Tensor:
        if tensor.device.type != NAME:
            return tensor
        # An empty output is resized by the operator, which an alias cannot be.
        is_output = writes and not tensor.numel()
        found = torch.empty(tensor.shape, dtype=tensor.dtype) if is_output else _host(tensor)
        originals[id(found)] = found, tensor, found.shape
        return found

    def original(tensor: Tensor) -> Tensor:
        if id(tensor) in originals:
            return originals[id(tensor)][1]
        return _device(tensor) if tensor.device.type == "cpu" else tensor

    args, kwargs = _mapped(args, alias), {k: _mapped(v, alias) for k, v in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    if kwargs.get("generator") is not None:
        kwargs["generator"] = None
    result = op(*args, **kwargs)
    for found, tensor, shape in originals.values():
        if found.shape != shape:
            new = _device(found)
            tensor.set_(new.untyped_storage(), 0, new.shape, new.stride())
    return _mapped(result, original)


def _each(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _each(part)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    return value


# -- operators that differ from those of the CPU --------------------------------------------------


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return _device(torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return _device(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if source.numel():
        if target.device.type != NAME:
            _add("waits", "copy to the host")
        elif source.device.type == NAME:
            _add("kernels", "copy_")
        else:
            is_asynchronous = non_blocking and hasattr(source, "pinned")
            _add("uploads", "non-blocking" if is_asynchronous else "blocking")
    own, other = (t if t.device.type == "cpu" else _host(t) for t in (target, source))
    own.copy_(other)
    return target


def _copy_and_resize(source: Tensor, target: Tensor) -> Tensor:
    return _copy(source, target.resize_(source.shape))


def _item(tensor: Tensor) -> Any:
    _add("waits", ".item()")
    return _host(tensor).item()


def _resize(tensor: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    if tuple(tensor.shape) == tuple(size):
        return tensor
    new = torch.empty(size, dtype=tensor.dtype, device=NAME)
    count = min(new.numel(), tensor.numel())
    _host(new).flatten()[:count].copy_(_host(tensor).flatten()[:count])
    return tensor.set_(new.untyped_storage(), 0, new.shape, new.stride())


def _set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    where = source.storage_offset(), source.shape, source.stride()
    return tensor.set_(source.untyped_storage(), *where)


def _set_storage(tensor: Tensor, storage: Any) -> Tensor:
    return tensor.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def _convolution(*args: Any) -> Tensor:
    return _run(aten.convolution.default, *args)


def _convolution_backward(grad: Tensor, value: Tensor, weight: Tensor, *where: Any) -> Any:
    *_, is_transposed, _, groups, mask = where
    size = weight.shape[1] * groups if is_transposed else weight.shape[0]
    biases = [size] if mask[2] else None
    return _run(aten.convolution_backward.default, grad, value, weight, biases, *where)


def _view(op: Any) -> Any:
    """Return the CPU's code of a view, which keeps the device and touches no memory."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return partial(op.redispatch, keys)


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    """Return a copy that is marked as pinned memory."""
    copy = tensor.clone()
    copy.pinned = True
    return copy


OPERATORS = {
    "_copy_from": _copy,
    "_copy_from_and_resize": _copy_and_resize,
    "_local_scalar_dense": _item,
    "convolution_backward_overrideable": _convolution_backward,
    "convolution_overrideable": _convolution,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "resize_": _resize,
    "set_.source_Storage": _set_storage,
    "set_.source_Tensor": _set_tensor,
}
VIEWS = ("_reshape_alias", "as_strided", "set_.source_Storage_storage_offset", "unfold", "view",
         "view_as_complex", "view_as_real")  # fmt: skip


# -- registration ---------------------------------------------------------------------------------


class _Module(getattr(backend_registration, "_DummyBackendModule", object)):
    """The module ``torch.sim``."""

    def get_device_name(self, device: Any = None) -> str:
        return "simulated"

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def get_rng_state_all(self) -> list[Tensor]:
        return [torch.get_rng_state()]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        _add("waits", "synchronize")

    def memory(self, device: Any = None) -> int:
        """Return 0: memory is not simulated."""
        return 0

    max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = memory

    def nothing(self, *_: Any) -> None:
        """Do nothing."""

    _lazy_init = empty_cache = manual_seed = reset_peak_memory_stats = set_device = nothing
    set_rng_state = set_rng_state_all = nothing

    @contextlib.contextmanager
    def device(self, index: Any) -> Iterator[None]:
        yield


_libraries: list[Any] = []


def is_installed() -> bool:
    """Return True if this process has the device."""
    return bool(_libraries)


def install() -> None:
    """Register the device, once in a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    every = torch.library.Library("_", "IMPL")
    every.fallback(_run, "PrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    _libraries.extend([every, library])
    for name in VIEWS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        library.impl(name, _view(op), "PrivateUse1")
    for name, function in OPERATORS.items():
        library.impl(name, function, "PrivateUse1")
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::_foreach_"):  # else a kernel for each tensor of the list
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            library.impl(name.removeprefix("aten::"), partial(_run, op), "PrivateUse1")
    Tensor.pin_memory = _pinned
    # Between CPU and CUDA, Module.to changes parameters in place, so that tied weights stay tied.
    torch.__future__.set_swap_module_params_on_conversion(True)
    for name in ("empty_cache", "max_memory_allocated", "memory_allocated", "synchronize"):
        setattr(torch.accelerator, name, getattr(torch.sim, name))
