"""Sections hardware and losses: one step of each loss, from logits and from hidden states.

Axes    n supervised rows, v vocabulary, d width of the model
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _bench import Setting, objective_of
from _gpu_before import CrossEntropy, LinearCrossEntropy
from _gpu_jobs import Job, Record, without_package
from _measure import (
    milliseconds_cpu,
    milliseconds_cuda,
    peak_cpu,
    peak_cuda,
    waits_cuda,
)
from torch import Tensor, nn
from torch.nn import functional

OURS = ("ce", "ntil")
WARM_UP = 2  # the first step compiles kernels, the second runs what was tuned
REPEATS = 5

Step = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The size and the labels of a step."""

    setting: Setting
    wanted: Tensor
    """Labels [n] on the CPU."""

    labels: Tensor
    """Labels [n] on the device."""


def hardware_jobs(device: str, toy: bool) -> list[Job]:
    """Return the job that measures what the GPU can do: a copy and a large product."""
    options = {"size": 1 << (8 if toy else 13), "device": device}
    return [Job(title="hardware", names=("copy", "product"), function=measure_hardware,
                options=options, seconds=30, shared_process=True)]  # fmt: skip


def measure_hardware(name: str, *, size: int, device: str) -> Record:
    """Return the time of a bf16 copy of 64 ``size`` by ``size`` numbers, or of a square product."""
    matrix = torch.randn(64 if name == "copy" else 1, size, size, device=device).bfloat16()
    out = torch.empty_like(matrix)
    clock = milliseconds_cuda if device == "cuda" else milliseconds_cpu
    run = (
        (lambda: out.copy_(matrix))
        if name == "copy"
        else lambda: torch.bmm(matrix, matrix, out=out)
    )
    times = [clock(run) for _ in range(WARM_UP + 20)][WARM_UP:]  # type: ignore[arg-type]
    work = {"nbytes": 2 * matrix.nbytes} if name == "copy" else {"operations": 2 * size**3}
    return {"milliseconds": times, **_rates(statistics.median(times), **work)}


def _rates(milliseconds: float, *, nbytes: float = 0, operations: float = 0) -> Record:
    """Return GB/s and TFLOP/s; without the one of which nothing is counted."""
    found = {"gb_per_second": nbytes / milliseconds / 1e6,
             "tflops": operations / milliseconds / 1e9}  # fmt: skip
    return {name: rate for name, rate in found.items() if rate}


def jobs(device: str, toy: bool) -> list[Job]:
    """Return one job for each number of rows and each input of the loss."""
    sizes = (16,) if toy else (8192, 32768)
    shape = {"vocabulary": 1000, "width": 64} if toy else {"vocabulary": 151936, "width": 3584}
    found = []
    for rows in sizes:
        for title, table, inputs in (
            ("from logits", FROM_LOGITS, "logits"),
            ("from hidden states, head trained", FROM_HIDDEN, "hidden, head"),
            ("from hidden states, head frozen", FROM_HIDDEN, "hidden"),
        ):
            found.append(
                Job(
                    title=f"{rows:,} supervised tokens, {title}",
                    names=tuple(table),
                    function=measure,
                    options={**shape, "rows": rows, "inputs": inputs, "device": device},
                    unavailable=unavailable(device),
                    seconds=90,
                    shared_process=True,
                )
            )
    return found


def measure(
    name: str, *, rows: int, vocabulary: int, width: int, inputs: str, device: str
) -> Record:
    """Return time, peak memory and waits of a step, forward and backward, and its loss.

    ``inputs`` names the tensors that get a gradient: ``logits``, ``hidden``, or both ``hidden`` and
    ``head``. Everything is bf16, as in a training step under autocast. From logits, GB/s counts 6
    bytes a logit: read once, then read and written once. From hidden states, TFLOP/s counts the
    products that cannot be saved: logits and gradients.
    """
    torch.manual_seed(0)
    setting = Setting(
        vocabulary=vocabulary,
        rows=rows,
        width=width,
        dtype=torch.bfloat16,
        device=torch.device(device),
    )
    wanted = setting.labels()
    batch = Batch(setting=setting, wanted=wanted, labels=wanted.to(device))
    step = (FROM_LOGITS if inputs == "logits" else FROM_HIDDEN)[name](batch)
    tensors = make_inputs(setting, inputs)
    found = measure_step(lambda: step(*tensors), tensors, device)
    products = {"logits": 0, "hidden": 2, "hidden, head": 3}[inputs]
    size = rows * vocabulary
    work = {"operations": 2.0 * products * size * width} if products else {"nbytes": 6.0 * size}
    return {**found, **_rates(found["median_milliseconds"], **work)}  # type: ignore[arg-type]


def make_inputs(setting: Setting, inputs: str) -> tuple[Tensor, ...]:
    """Return logits [n, v], or hidden states [n, d] and the weight [v, d] of a head."""
    if inputs == "logits":
        return (setting.random(setting.rows, setting.vocabulary),)
    hidden = setting.random(setting.rows, setting.width)
    head = setting.random(setting.vocabulary, setting.width, scale=setting.width**-0.5)
    return hidden, head if "head" in inputs else head.detach()


def measure_step(step: Callable[[], Tensor], tensors: tuple[Tensor, ...], device: str) -> Record:
    """Return the measurements of a loss, each on a step that starts without gradients."""
    losses: list[Tensor] = []

    def whole_step() -> None:
        for tensor in tensors:
            tensor.grad = None
        loss = step()
        loss.backward()
        losses.append(loss.detach())

    def free(found: object) -> object:
        for tensor in tensors:
            tensor.grad = None
        return found

    for _ in range(WARM_UP):
        whole_step()
    free(None)
    on_gpu = device == "cuda"
    peak = free((peak_cuda if on_gpu else peak_cpu)(whole_step))
    waits = free(waits_cuda(whole_step)) if on_gpu else None
    clock = milliseconds_cuda if on_gpu else milliseconds_cpu
    times = [free(clock(whole_step)) for _ in range(REPEATS)]
    return {
        "milliseconds": times,
        "median_milliseconds": statistics.median(times),
        "peak_bytes": peak,
        "waits": waits,
        "loss": losses[0].item(),
    }


# -- losses; to add one, add a line to FROM_LOGITS or FROM_HIDDEN ---------------------------------


def _torch_from_logits(batch: Batch) -> Step:
    """Return torch's CE, which needs the logits in float32 for an exact loss."""
    return lambda logits: functional.cross_entropy(logits.float(), batch.labels)


def _torch_all_logits(batch: Batch) -> Step:
    """Return torch's CE on the logits of all rows."""
    return lambda hidden, head: functional.cross_entropy((hidden @ head.T).float(), batch.labels)


def _compiled(make: Callable[[Batch], Step]) -> Callable[[Batch], Step]:
    """Return the step of a loss under ``torch.compile``; on a CPU, without a compiler of C++."""

    def made(batch: Batch) -> Step:
        backend = "inductor" if batch.labels.is_cuda else "aot_eager"
        return torch.compile(make(batch), dynamic=False, backend=backend)

    return made


def torch_linear_cross_entropy(batch: Batch, reduction: str = "mean") -> Step:
    """Return torch's fused function, in chunks."""
    return lambda hidden, head: functional.linear_cross_entropy(
        hidden, head, batch.labels, reduction=reduction, options=nn.LinearCrossEntropyOptions()
    )


def _liger_from_logits(batch: Batch) -> Step:
    """Return Liger's CE, which overwrites the logits: only the loss of the first step is right."""
    from liger_kernel.transformers import LigerCrossEntropyLoss

    loss_of = LigerCrossEntropyLoss()
    return lambda logits: loss_of(logits, batch.labels)


def _liger(batch: Batch, reduction: str = "mean") -> Step:
    """Return Liger's fused linear CE."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss(reduction=reduction)
    return lambda hidden, head: fused(head, hidden, batch.labels)


def cut_cross_entropy(batch: Batch, reduction: str = "mean") -> Step:
    """Return Apple's cut cross-entropy, by its Triton kernel."""
    from cut_cross_entropy import linear_cross_entropy

    return lambda hidden, head: linear_cross_entropy(
        hidden, head, batch.labels, reduction=reduction, impl="cce"
    )


def _ours(preset: str, library: Callable[..., Step] | None = None) -> Callable[[Batch], Step]:
    """Return the step of an objective from logits or from hidden states.

    If ``library`` is given, it computes the losses [n], which ``NumericLoss.from_losses`` uses.
    """

    def make(batch: Batch) -> Step:
        made = objective_of(preset, batch.setting)
        spans = made.spans(batch.wanted[None]).to(batch.setting.device)
        if library is not None:
            losses = library(batch, reduction="none")
            return lambda hidden, head: (
                made.from_losses(losses(hidden, head), hidden, head, spans).loss
            )

        def step(first: Tensor, head: Tensor | None = None) -> Tensor:
            if head is None:
                return made(first, batch.labels, spans).loss
            return made.from_hidden(first, head, batch.labels, spans).loss

        return step

    return make


FROM_LOGITS: dict[str, Callable[[Batch], Step]] = {
    "torch, cross_entropy": _torch_from_logits,
    "torch, cross_entropy compiled": _compiled(_torch_from_logits),
    "Liger, CE": _liger_from_logits,
    "ours before, ce": lambda b: lambda z: CrossEntropy.apply(z, b.labels).mean(),
    **{f"ours, {preset}": _ours(preset) for preset in OURS},
}
FROM_HIDDEN: dict[str, Callable[[Batch], Step]] = {
    "torch, cross_entropy on all logits": _torch_all_logits,
    "torch, the same compiled": _compiled(_torch_all_logits),
    "torch, linear_cross_entropy in chunks": torch_linear_cross_entropy,
    "Liger, fused linear CE": _liger,
    "cut-cross-entropy": cut_cross_entropy,
    "ours before, from_hidden ce": lambda b: (
        lambda hidden, head: LinearCrossEntropy.apply(hidden, head, b.labels).mean()
    ),
    **{f"ours, from_hidden {preset}": _ours(preset) for preset in OURS},
    "ours, from_losses ntil on torch's": _ours("ntil", torch_linear_cross_entropy),
    "ours, from_losses ntil on Liger's": _ours("ntil", _liger),
    "ours, from_losses ntil on cut-cross-entropy": _ours("ntil", cut_cross_entropy),
}


def unavailable(device: str) -> dict[str, str]:
    """Return the names of the losses that cannot be measured here, and the reason of each."""
    reasons = {
        "Liger": without_package("liger_kernel", "liger-kernel", device, kernels=True),
        "cut-cross-entropy": without_package(
            "cut_cross_entropy", "cut-cross-entropy", device, kernels=True
        ),
    }
    if not hasattr(functional, "linear_cross_entropy"):
        why = f"torch {torch.__version__} has no torch.nn.functional.linear_cross_entropy"
        reasons |= {"torch, linear_cross_entropy": why, "on torch's": why}
    return {name: why for name in (*FROM_LOGITS, *FROM_HIDDEN)
            for library, why in reasons.items() if library in name and why}  # fmt: skip
