"""Section losses: one step of each loss, from logits and from hidden states.

Axes    n supervised rows, v vocabulary, d width of the model
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _bench import Setting, objective_of
from _gpu_jobs import Job, Record, without_package
from _measure import milliseconds_cpu, milliseconds_cuda, peak_cpu, peak_cuda, waits_cuda
from torch import Tensor
from torch.nn import functional

OURS = ("ce", "ntl_was", "ntil")
WARM_UP = 2  # the first step compiles kernels, the second runs what was tuned
REPEATS = 10

Step = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The size and the labels of a step."""

    setting: Setting
    wanted: Tensor
    """Labels [n] on the CPU."""

    labels: Tensor
    """Labels [n] on the device."""


def jobs(device: str, toy: bool) -> list[Job]:
    """Return one job for each number of rows and each input of the loss."""
    sizes = (16,) if toy else (1024, 8192, 32768)
    shape = {"vocabulary": 1000, "width": 64} if toy else {"vocabulary": 151936, "width": 3584}
    found = []
    for rows in sizes:
        for title, names, inputs in (
            ("from logits", FROM_LOGITS, "logits"),
            ("from hidden states, head trained", FROM_HIDDEN, "hidden, head"),
            ("from hidden states, head frozen", FROM_HIDDEN, "hidden"),
        ):
            found.append(
                Job(
                    title=f"{rows:,} supervised tokens, {title}",
                    names=tuple(names),
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
    ``head``. Everything is bf16, as in a training step under autocast.
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
    return measure_step(lambda: step(*tensors), tensors, device)


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
        losses[:] = [step()]
        losses[0].backward()
        losses[0] = losses[0].detach()

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


# -- from logits ----------------------------------------------------------------------------------


def _torch_from_logits(batch: Batch) -> Step:
    """Return torch's CE, which needs the logits in float32 for an exact loss."""
    return lambda logits: functional.cross_entropy(logits.float(), batch.labels)


def _ours_from_logits(preset: str) -> Callable[[Batch], Step]:
    """Return the step of an objective from logits."""

    def make(batch: Batch) -> Step:
        made = objective_of(preset, batch.setting)
        spans = made.spans(batch.wanted[None]).to(batch.setting.device)
        return lambda logits: made(logits, batch.labels, spans).loss

    return make


# -- from hidden states ---------------------------------------------------------------------------


def _torch_all_logits(batch: Batch) -> Step:
    """Return torch's CE on the logits of all rows."""
    return lambda hidden, head: functional.cross_entropy((hidden @ head.T).float(), batch.labels)


def torch_linear_cross_entropy(labels: Tensor, *, chunked: bool, reduction: str = "mean") -> Step:
    """Return torch's fused function, in chunks or by its reference implementation."""
    options = {"options": torch.nn.LinearCrossEntropyOptions()} if chunked else {}
    return lambda hidden, head: functional.linear_cross_entropy(
        hidden, head, labels, reduction=reduction, **options
    )


def _liger(batch: Batch) -> Step:
    """Return Liger's fused linear CE."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    fused = LigerFusedLinearCrossEntropyLoss()
    return lambda hidden, head: fused(head, hidden, batch.labels)


def cut_cross_entropy(batch: Batch, reduction: str = "mean") -> Step:
    """Return Apple's cut cross-entropy, by its Triton kernel."""
    from cut_cross_entropy import linear_cross_entropy

    return lambda hidden, head: linear_cross_entropy(
        hidden, head, batch.labels, reduction=reduction, impl="cce"
    )


def _from_hidden(preset: str) -> Callable[[Batch], Step]:
    """Return the step of ``NumericLoss.from_hidden``."""

    def make(batch: Batch) -> Step:
        made = objective_of(preset, batch.setting)
        spans = made.spans(batch.wanted[None]).to(batch.setting.device)
        return lambda hidden, head: made.from_hidden(hidden, head, batch.labels, spans).loss

    return make


def _from_losses(preset: str, fused: Callable[[Batch], Step]) -> Callable[[Batch], Step]:
    """Return the step of ``NumericLoss.from_losses`` on the losses [n] of another library."""

    def make(batch: Batch) -> Step:
        made = objective_of(preset, batch.setting)
        spans = made.spans(batch.wanted[None]).to(batch.setting.device)
        losses = fused(batch)
        return lambda hidden, head: made.from_losses(losses(hidden, head), hidden, head, spans).loss

    return make


FROM_LOGITS: dict[str, Callable[[Batch], Step]] = {
    "torch, cross_entropy": _torch_from_logits,
    **{f"ours, {preset}": _ours_from_logits(preset) for preset in OURS},
}

# Liger's fused linear CE has reduction="none", but its backward (0.8.5) multiplies every row's
# gradient with that of the first row, so that from_losses cannot be used with it.
FROM_HIDDEN: dict[str, Callable[[Batch], Step]] = {
    "torch, cross_entropy on all logits": _torch_all_logits,
    "torch, linear_cross_entropy": lambda b: torch_linear_cross_entropy(b.labels, chunked=False),
    "torch, linear_cross_entropy in chunks": lambda b: torch_linear_cross_entropy(
        b.labels, chunked=True
    ),
    "Liger, fused linear CE": _liger,
    "cut-cross-entropy": cut_cross_entropy,
    **{f"ours, from_hidden {preset}": _from_hidden(preset) for preset in OURS},
    "ours, from_losses ntl_was on torch's": _from_losses(
        "ntl_was", lambda b: torch_linear_cross_entropy(b.labels, chunked=True, reduction="none")
    ),
    "ours, from_losses ntl_was on cut-cross-entropy": _from_losses(
        "ntl_was", lambda b: cut_cross_entropy(b, reduction="none")
    ),
}


def unavailable(device: str) -> dict[str, str]:
    """Return the names of the losses that cannot be measured here, and the reason of each."""
    reasons = {
        "torch's": ""
        if hasattr(functional, "linear_cross_entropy")
        else f"torch {torch.__version__} has no torch.nn.functional.linear_cross_entropy",
        "Liger": without_package("liger_kernel", "liger-kernel", device, kernels=True),
        "cut-cross-entropy": without_package(
            "cut_cross_entropy", "cut-cross-entropy", device, kernels=True
        ),
    }
    used = {
        "torch, linear_cross_entropy": "torch's",
        "torch, linear_cross_entropy in chunks": "torch's",
        "ours, from_losses ntl_was on torch's": "torch's",
        "Liger, fused linear CE": "Liger",
        "cut-cross-entropy": "cut-cross-entropy",
        "ours, from_losses ntl_was on cut-cross-entropy": "cut-cross-entropy",
    }
    return {name: reasons[library] for name, library in used.items() if reasons[library]}
