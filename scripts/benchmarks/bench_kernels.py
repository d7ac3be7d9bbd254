"""Print the errors of the losses, and the memory traffic and the products of a step on a GPU.

    python scripts/benchmarks/bench_kernels.py
    python scripts/benchmarks/bench_kernels.py --preset ce ntl_was

Errors are those of the Triton kernels relative to float64 on a CPU: of the loss, and of the
gradient divided by its largest entry. Without a GPU, Triton's interpreter runs the kernels; it
truncates to bf16, so that the error of a gradient is up to 2**-7, and not 2**-8.

Traffic is the size of the logits that all operators of a step read and write, forward and backward,
in bytes for each logit. Products are those of hidden states, logits and head that a step computes,
by ``torch.utils.flop_counter``. Both are counted on tensors without memory, for 32,768 rows.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))  # from a checkout, whether installed or not

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from _bench import Setting, known_names, objective_of
from _gpu_losses import OURS, make_inputs
from _measure import table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mm_numeric.losses import cross_entropy, linear_cross_entropy

INPUTS = {"logits": "logits", "hidden, head": "head trained", "hidden": "head frozen"}
SPARSE = ("gather", "scatter", "index")  # operators that access few elements of their first tensor
NOT_READ = ("copy_", "zero_", "fill_")  # operators that overwrite their first tensor


@contextmanager
def kernels(used: bool) -> Iterator[None]:
    """Compute the losses with the Triton kernels, but not in float64, or without them."""

    def uses_kernels(logits: Tensor) -> bool:
        return used and logits.dtype != torch.float64

    modules = cross_entropy, linear_cross_entropy
    with (
        mock.patch.object(modules[0], "uses_kernels", uses_kernels),
        mock.patch.object(modules[1], "uses_kernels", uses_kernels),
    ):
        yield


def step(name: str, setting: Setting, wanted: Tensor, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the loss of a preset and the gradients of its inputs."""
    objective = objective_of(name, setting)
    device = tensors[0].device
    spans, labels = objective.spans(wanted[None]).to(device), wanted.to(device)
    compute = objective if len(tensors) == 1 else objective.from_hidden
    loss = compute(*tensors, labels, spans).loss
    loss.backward()
    return [loss.detach(), *(tensor.grad for tensor in tensors if tensor.grad is not None)]


def errors(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of the table of errors: for each preset and dtype, those of each input."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in names:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            cells = []
            for inputs in INPUTS:
                torch.manual_seed(0)
                setting = Setting(vocabulary=5000, rows=24, width=32, dtype=dtype, device=device)
                wanted = setting.labels()
                tensors = make_inputs(setting, inputs)
                exact = tuple(
                    x.detach().cpu().double().requires_grad_(x.requires_grad) for x in tensors
                )
                with kernels(True):
                    torch.manual_seed(0)  # of the noise of NTIL
                    found = step(name, setting, wanted, tensors)
                    torch.manual_seed(0)
                    expected = step(name, setting, wanted, exact)
                cells += [
                    f"{(one.cpu().double() - other).abs().max() / other.abs().max():.0e}"
                    for one, other in zip(found, expected, strict=True)
                ]
            yield [name, str(dtype).removeprefix("torch."), *cells]


class Traffic(TorchDispatchMode):
    """Counts the bytes of logits, and of tensors of their size, that operators access."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.bytes = width, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore
        """Run an operator, and count its arguments and its results."""
        results = function(*arguments, **(options or {}))
        name = function._schema.name.rpartition("::")[2]
        if not function.is_view and "empty" not in name:
            read = arguments[any(word in name for word in (*SPARSE, *NOT_READ)) :]
            written = () if any(word in name for word in SPARSE) else results
            self.bytes += self._size(read) + self._size(written)
        return results

    def _size(self, value: object) -> int:
        if isinstance(value, list | tuple):
            return sum(map(self._size, value))
        if not isinstance(value, Tensor) or value.dim() < 2 or self.width in value.shape:
            return 0
        return value.numel() * value.element_size()


def counts(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of the table of counts: for each preset, inputs and kernels."""
    setting = Setting(rows=32768, width=3584, dtype=torch.bfloat16, device=torch.device("meta"))
    logits = setting.rows * setting.vocabulary
    wanted = setting.labels()
    for name in names:
        for inputs, title in INPUTS.items():
            cells, tensors = [], make_inputs(setting, inputs)
            for used in (False, True):
                traffic, products = Traffic(setting.width), FlopCounterMode(display=False)
                with kernels(used), traffic, products:
                    step(name, setting, wanted, tensors)
                for tensor in tensors:
                    tensor.grad = None
                cells.append(f"{traffic.bytes / logits:.1f}")
            cells.append(f"{products.get_total_flops() / (2 * logits * setting.width):.2f}")
            yield [name, title, *cells]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", nargs="+", help="presets and terms (default: all)")
    names = parser.parse_args().preset
    heads = ["logits", "gradient", "head trained", "hidden", "weight", "head frozen", "hidden"]
    print(*table(["loss", "dtype", *heads], list(errors(names or known_names()))), "", sep="\n")
    header = ["loss", "inputs", "bytes a logit", "with kernels", "products"]
    print(*table(header, list(counts(names or OURS))), sep="\n")


if __name__ == "__main__":
    main()
