"""The Triton kernels in Triton's interpreter, on the CPU; ``test_devices.py`` runs them on a GPU.

The interpreter truncates what it writes in bf16, where a GPU rounds.
"""

import subprocess
import sys
import textwrap

import pytest
import torch
from chunked_heads import head
from import_graph import ROOT
from objective_steps import EACH, made, stepped
from tokens import SIZE, batch

from mm_numeric.losses import cross_entropy, linear_cross_entropy, triton_kernels
from mm_numeric.numbers.spans import IGNORE_INDEX

BLOCK = 8  # the vocabulary has 22 tokens: two blocks, and six tokens of a third
ERROR = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
FORMS = ["logits", "trained head", "frozen head"]
DTYPES = pytest.mark.parametrize("dtype", ERROR)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(triton_kernels, "_BLOCK", BLOCK)


@pytest.fixture
def on_kernels(monkeypatch):
    """Return a function that computes losses with the kernels, but those of float64."""
    for module in (cross_entropy, linear_cross_entropy):
        monkeypatch.setattr(module, "uses_kernels", lambda logits: logits.dtype != torch.float64)


def definition(part, **names):
    """Run one of the definitions in the docstring of the module, and return its variables."""
    block = triton_kernels.__doc__.partition("::\n\n")[2].partition("\n\ntorch.compile")[0]
    chosen, *parts = textwrap.dedent(block).split("\n\n")
    names |= {"torch": torch, "v": names["logits"].shape[1]}
    exec(f"{chosen}\n{parts[part]}", names)
    return names


@DTYPES
@pytest.mark.parametrize("rows", [None, [5, 0, 3]])
@pytest.mark.parametrize("tokens", [1, BLOCK - 1, 2 * BLOCK + 5])
def test_kernels_equal_the_definition_in_their_docstring(tokens, rows, dtype):
    source = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(6, 2 * tokens, generator=source)).to(dtype)[:, :tokens]
    logits[0] = -torch.inf
    logits[0, -1] = -300  # the other tokens are masked
    rows = None if rows is None else torch.tensor(rows)
    named = torch.arange(6) if rows is None else rows
    labels = torch.randint(tokens, named.shape, generator=source)
    found = triton_kernels.row_statistics(logits, rows, labels)
    expected = definition(0, logits=logits, rows=named, labels=labels)
    for name, value in zip(("normaliser", "at_labels", "largest", "likely"), found, strict=True):
        torch.testing.assert_close(value, expected[name], msg=name)

    labels[-1] = -1  # the label is a token of another chunk
    arguments = {"labels": labels, "shift": found[0]}
    arguments |= dict(zip(("scale", "at_labels"), torch.rand(2, len(labels)), strict=True))
    expected = definition(1, logits=logits, rows=named, out=torch.zeros_like(logits), **arguments)
    for out in (torch.zeros_like(logits), logits.clone()):
        triton_kernels.write_softmax(out, logits, rows, **arguments)
        torch.testing.assert_close(
            out[named], expected["out"][named], rtol=ERROR[dtype], atol=2.0**-24
        )
    untouched = [row for row in range(6) if row not in named]
    assert torch.equal(out[untouched], logits[untouched])
    triton_kernels.write_softmax(logits, logits, rows, **arguments)  # in place
    assert torch.equal(logits[named], out[named])


def step(name, form, dtype):
    """Return the loss of a preset, its components and metrics, and the gradients, in float64."""
    logits, labels = batch(1, dtype)
    objective = made(name)
    if form == "logits":  # some positions have no label
        result, gradient = stepped(objective, logits, labels, metrics=True)
        gradients = [gradient]
    else:
        spans, supervised = objective.spans(labels), labels != IGNORE_INDEX
        leaves = head(labels, dtype)
        leaves[0], labels = leaves[0][supervised], labels[supervised]
        for leaf in leaves if form == "trained head" else leaves[:1]:
            leaf.requires_grad_()
        hidden, weight, bias = leaves
        result = objective.from_hidden(hidden, weight, labels, spans, bias=bias, metrics=True)
        result.loss.backward()
        gradients = [leaf.grad for leaf in leaves if leaf.requires_grad]
    numbers = {**result.components, **result.metrics}
    values = [torch.stack([result.loss.detach(), *numbers.values()]), *gradients]
    return [value.double() for value in values]


@pytest.mark.parametrize("name", EACH)
def test_presets_equal_float64(name, on_kernels):
    assert_equals_float64(name, "logits")


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("name", ["ce", "ntil_soft"])
def test_heads_equal_float64(name, form, on_kernels):
    assert_equals_float64(name, form)


def assert_equals_float64(name, form):
    found, expected = (step(name, form, dtype) for dtype in (torch.float32, torch.float64))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("known", [0.0, 10.0])
def test_half_precision_is_rounded_once(dtype, known, on_kernels):
    logits, labels = batch(1)
    logits += known * torch.nn.functional.one_hot(labels.clamp(min=0), SIZE)
    objective, logits = made("ntl_was"), logits.to(dtype)
    (found, gradient), (expected, wanted) = (
        stepped(objective, z, labels) for z in (logits, logits.double())
    )
    torch.testing.assert_close(found.loss.double(), expected.loss)
    torch.testing.assert_close(gradient.double(), wanted, rtol=ERROR[dtype], atol=2.0**-24)


@pytest.mark.parametrize("form", FORMS)
def test_no_labels(form, on_kernels, monkeypatch):
    logits, labels = batch(1)
    monkeypatch.setitem(step.__globals__, "batch", lambda *_: (logits.float(), labels.fill_(-100)))
    values, *gradients = step("ntl_was", form, torch.float32)
    assert not any(value.any() for value in (values[0], *gradients))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS[:2])
def test_a_step_is_one_graph(form, on_kernels):
    """The kernels are operators in the graph."""
    objective, (logits, labels) = made("ntl_was"), batch(1, torch.float32)
    spans, supervised = objective.spans(labels), labels != IGNORE_INDEX
    _, weight, bias = head(labels, torch.float32)
    weight.requires_grad_(form == "trained head")

    def loss(inputs, labels, spans):
        if form == "logits":
            return objective(inputs, labels, spans).loss
        return objective.from_hidden(inputs, weight, labels, spans, bias=bias).loss

    inputs = logits if form == "logits" else head(labels, torch.float32)[0]
    found = []
    for run in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf, weight.grad = inputs[supervised].clone().requires_grad_(), None
        value = run(leaf, labels[supervised], spans)
        value.backward()
        found.append((value, leaf.grad, weight.grad))
    torch.testing.assert_close(*found)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mm_numeric.losses import triton_kernels

POINTERS = {"rows": "*i64", "labels": "*i64", "likely": "*i64"}
for kernel in (triton_kernels._statistics, triton_kernels._softmax):
    for dtype, rows in (("bf16", False), ("fp16", True), ("fp32", False)):
        names = kernel.arg_names
        constants = {"block": triton_kernels._BLOCK} | ({} if rows else {"rows": None})
        types = dict.fromkeys(names, "*fp32") | POINTERS | {"tokens": "i32"}
        types |= {"logits": f"*{dtype}", "out": f"*{dtype}", "stride": "i64", "out_stride": "i64"}
        types |= dict.fromkeys(constants, "constexpr")
        constants = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, {name: types[name] for name in names}, constants)
        warps = {"num_warps": triton_kernels._WARPS}
        print("cubin" in triton.compile(source, GPUTarget("cuda", 80, 32), warps).asm)
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(monkeypatch, tmp_path):
    """Triton compiles without a GPU; its interpreter accepts more than its compiler."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == 6 * ["True"], done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs here")
def test_a_machine_where_triton_does_not_run_gets_a_warning(logged):
    assert not cross_entropy.triton_runs.__wrapped__()
    assert "slower" in logged.getvalue()
