"""A step never waits for the device, and compiles to one graph."""

import shutil
import warnings

import pytest
import torch
from device_waits import Waits
from objective_steps import EACH, NUMERIC, SPECS
from tokens import SIZE, VOCABULARY, batch

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import TermSpec
from mm_numeric.numbers.spans import IGNORE_INDEX


def prepared(name, seed=1):
    """Return an objective and its inputs as a collator makes them: [n, v], [n] and spans."""
    logits, labels = batch(seed, torch.float32)
    made = NumericLoss(SPECS[name], vocabulary=VOCABULARY)
    supervised = labels != IGNORE_INDEX
    return made, logits[supervised], labels[supervised], made.spans(labels)


def test_the_count_counts():
    with Waits() as waits:
        values = torch.tensor([1.0, 0.0])
        values.nonzero()
        values[values > 0].sum().item()
    assert len(waits.found) == 3


@pytest.mark.parametrize("name", EACH)
def test_a_step_reads_nothing_back(name):
    """But for one look at the labels, which on a CPU costs nothing and names what is wrong."""
    made, logits, labels, spans = prepared(name)
    leaf = logits.requires_grad_()
    made(leaf, labels, spans)  # the tables are made once
    with Waits() as waits:
        made(leaf, labels, spans, shift=False, metrics=True).loss.backward()
    assert waits.found == ["aten._local_scalar_dense.default"]


@pytest.mark.parametrize("name", EACH)
def test_a_head_without_logits_reads_nothing_back(name):
    made, hidden, labels, spans = prepared(name)
    weight = torch.randn(SIZE, SIZE).requires_grad_()
    made.from_hidden(hidden, weight, labels, spans, shift=False)
    with Waits() as waits:
        made.from_hidden(hidden, weight, labels, spans, metrics=True, shift=False).loss.backward()
    assert waits.found == ["aten._local_scalar_dense.default"]


@pytest.mark.parametrize(
    "form",
    ["rows", "hidden", *(pytest.param(f, marks=pytest.mark.slow) for f in ("full", "full logits"))],
)
@pytest.mark.parametrize("name", EACH)
def test_a_step_elsewhere_needs_no_value(name, form):
    """On the device "meta" tensors have shapes and no values: what asks for one fails."""
    logits, labels = batch(1, torch.float32)
    made = NumericLoss(SPECS[name], vocabulary=VOCABULARY)
    spans = made.spans(labels).to("meta")
    if form in ("rows", "hidden"):
        logits = logits[labels != IGNORE_INDEX]
    if form != "full":
        labels = labels[labels != IGNORE_INDEX]
    leaf, labels = logits.to("meta").requires_grad_(), labels.to("meta")
    if form == "hidden":
        weight = torch.empty(SIZE, SIZE, device="meta", requires_grad=True)
        result = made.from_hidden(leaf, weight, labels, spans, metrics=True, shift=False)
    else:
        result = made(leaf, labels, spans, shift=False, metrics=True)
    result.loss.backward()
    assert leaf.grad.shape == leaf.shape


def compared(made, backend, *, hidden=False, seeds=(1, 2)):
    """Compile an objective as one graph, and hold it to itself on two batches of two sizes.

    The second compilation is for every size.
    """
    torch._dynamo.reset()
    weight = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))

    def step(inputs, labels, spans):
        result = (
            made.from_hidden(inputs, weight, labels, spans, shift=False)
            if hidden
            else made(inputs, labels, spans)
        )
        return result.loss, result.components

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for seed in seeds:
        _, logits, labels, spans = prepared("ce", seed)
        spans = made.spans(batch(seed)[1])
        found = []
        for run in (compiled, step):
            leaf = logits.clone().requires_grad_()
            loss, parts = run(leaf, labels, spans)
            loss.backward()
            found.append((loss, parts, leaf.grad))
        torch.testing.assert_close(*found)


def without_options(*names):
    """Return terms without their options, such as noise, which is drawn anew."""
    return tuple(TermSpec(name=name) for name in names)


EVERY_TERM = dict.fromkeys(term.name for name in NUMERIC for term in SPECS[name].terms)


@pytest.mark.slow
def test_every_term_is_in_one_graph():
    """All terms in one objective: the rest of a compilation takes most of its time."""
    compared(
        NumericLoss("ce", vocabulary=VOCABULARY, terms=without_options(*EVERY_TERM)), "aot_eager"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ce", "gce+ntl_was", "ntil_published"])
def test_an_objective_is_one_graph(name):
    """Each way to combine terms with cross-entropy; the terms above are compiled for every size."""
    terms = without_options(*(term.name for term in SPECS[name].terms))
    compared(NumericLoss(SPECS[name], vocabulary=VOCABULARY, terms=terms), "aot_eager", seeds=(1,))


@pytest.mark.slow
def test_weights_of_roles_are_compiled_without_a_warning():
    terms = (TermSpec(name="emd", roles={"free": 2.75}),)
    made = NumericLoss("ce", vocabulary=VOCABULARY, terms=terms)
    _, *inputs = prepared("ce")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo detected")
        found = torch.compile(made, fullgraph=True, backend="eager")(*inputs)
    torch.testing.assert_close(found.loss, made(*inputs).loss)


@pytest.mark.slow
def test_a_head_without_logits_is_one_graph():
    compared(NumericLoss("emd", vocabulary=VOCABULARY), "aot_eager", hidden=True)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a compiler on a CPU")
def test_inductor_agrees(monkeypatch):
    """One objective with a cumulative sum, for one size: each more is seconds of a compiler."""
    from torch._inductor import config, cpu_vec_isa  # takes two seconds

    # It compiles programs to test the CPU, and all headers; optimised code takes twice as long.
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    quick = {"cpp_cache_precompile_headers": False, "aot_inductor.debug_compile": True}
    with config.patch(quick):
        compared(NumericLoss("emd", vocabulary=VOCABULARY), "inductor", seeds=(1,))
