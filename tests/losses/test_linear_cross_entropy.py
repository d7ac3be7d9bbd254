"""An objective from hidden states: what it says of the logits, and never all of them at once."""

import json
import textwrap

import pytest
import torch
from chunked_heads import WIDTH, full, head
from objective_steps import EACH, made
from tokens import SIZE, VOCABULARY, batch, labels_of
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from mm_numeric.losses import cross_entropy
from mm_numeric.losses import linear_cross_entropy as module
from mm_numeric.losses.linear_cross_entropy import linear_cross_entropy_with_numbers
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

HALF = [torch.bfloat16, torch.float16]


def chunked(made, inputs, labels, *, frozen=False, **arguments):
    """Return the result from hidden states, and the gradients of those, weight and bias.

    If the head is ``frozen``, the gradient of the hidden states is the only one.
    """
    hidden, weight, bias = (tensor.clone() for tensor in inputs)
    leaves = [hidden] if frozen else [hidden, weight, bias]
    for leaf in leaves:
        leaf.requires_grad_()
    arguments = {"shift": False, **arguments}
    result = made.from_hidden(hidden, weight, labels, bias=bias, **arguments)
    result.loss.backward()
    return result, [leaf.grad for leaf in leaves]


def assert_same(found, expected, **tolerance):
    """Hold loss, parts and gradients to those of the logits."""
    (mine, gradients), (theirs, wanted) = found, expected
    torch.testing.assert_close(mine.loss, theirs.loss, **tolerance)
    torch.testing.assert_close(mine.components, theirs.components, **tolerance)
    assert {n: s.items for n, s in mine.sums.items()} == {
        n: s.items for n, s in theirs.sums.items()
    }
    torch.testing.assert_close(gradients, wanted[: len(gradients)], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", ["rows", "shifted", "frozen"])
@pytest.mark.parametrize("name", EACH)
def test_equals_the_logits(name, form, dtype):
    """Of float64 to 1e-9. In float32 the softmax of temperature 0.1 makes ten errors of one."""
    _, labels = batch(0)
    objective, arguments = made(name), {"shift": True}
    inputs = head(functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX), dtype)
    if form != "shifted":
        arguments, supervised = {"spans": objective.spans(labels)}, labels != IGNORE_INDEX
        inputs = head(labels, dtype)
        inputs[0], labels = inputs[0][supervised], labels[supervised]
    tolerance = (
        {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    )
    assert_same(
        chunked(objective, inputs, labels, frozen=form == "frozen", **arguments),
        full(objective, inputs, labels, **arguments),
        **tolerance,
    )


def test_equals_the_definition_of_its_docstring():
    _, _, block = linear_cross_entropy_with_numbers.__doc__.partition("::\n\n")
    lines = textwrap.indent(textwrap.dedent(block.partition("\n\n")[0]), "    ")
    names = {}
    arguments = "hidden, weight, bias, labels, number_rows, number_ids"
    exec(f"def defined({arguments}):\n{lines}", vars(module), names)
    labels = labels_of("a-12.5, 07")
    inputs, spans = head(labels), NumberSpans.from_labels(labels, VOCABULARY)
    ids = torch.tensor([token.id for token in VOCABULARY.tokens])
    found = []
    for compute in (linear_cross_entropy_with_numbers, names["defined"]):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        *made, likely = compute(leaves[0][0], *leaves[1:], labels[0], spans.position, ids)
        weights = [torch.arange(1.0, part.numel() + 1).view_as(part) for part in made]
        sum((w * part).sum() for w, part in zip(weights, made, strict=True)).backward()
        found.append([*made, likely, *(leaf.grad for leaf in leaves)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", EACH)
def test_half_precision_is_as_good_as_that_of_the_logits(name, dtype):
    """Both against the same weights in float64; the logits themselves are rounded in both."""
    _, labels = batch(1)
    inputs = head(labels, dtype)
    exact = full(made(name), [tensor.double() for tensor in inputs], labels)
    found, other = chunked(made(name), inputs, labels), full(made(name), inputs, labels)
    frozen = chunked(made(name), inputs, labels, frozen=True)
    eps = torch.finfo(dtype).eps
    assert found[0].loss.dtype == torch.float32
    torch.testing.assert_close(found[0].loss.double(), exact[0].loss, rtol=2 * eps, atol=eps)
    assert frozen[0].loss == found[0].loss
    pairs = [
        *zip(found[1], other[1], exact[1], strict=True),
        (*frozen[1], other[1][0], exact[1][0]),
    ]
    for mine, theirs, wanted in pairs:
        assert mine.dtype == dtype
        error, their_error = ((g.double() - wanted).norm() for g in (mine, theirs))
        assert error <= 1.1 * their_error + eps / 2 * wanted.norm()


@pytest.mark.parametrize("rows", [1, 3, 7, 10_000])
def test_chunks_make_no_difference(monkeypatch, rows):
    _, labels = batch(2)
    inputs = head(labels)
    expected = full(made("ntil"), inputs, labels)
    monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", rows * SIZE + 1)
    monkeypatch.setattr(cross_entropy, "_FROZEN_CPU_CHUNK", rows * SIZE + 1)
    for frozen in (False, True):
        found = chunked(made("ntil"), inputs, labels, frozen=frozen)
        assert_same(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", HALF)
def test_sums_over_chunks_are_not_rounded_at_each(monkeypatch, dtype):
    """A bf16 sum of 400 chunks would lose what is small next to the sum so far."""
    labels = labels_of("12ab" * 100)
    inputs = head(labels, dtype)
    exact = full(made("ntl_was"), [tensor.double() for tensor in inputs], labels)
    monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", 1)
    found = chunked(made("ntl_was"), inputs, labels)
    for mine, wanted in zip(found[1], exact[1], strict=True):
        error = (mine.double() - wanted).norm() / wanted.norm()
        assert error < 0.6 * torch.finfo(dtype).eps  # half a unit in the last place, and logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_head_keeps_the_gradient_of_a_label_that_is_almost_certain(dtype):
    """A softmax of 0.999 is 1 in bf16: the label would have no gradient, or none but rounding."""
    labels = labels_of("12a" * 4)
    hidden, weight, bias = (tensor.double() for tensor in head(labels))
    wanted = weight[labels[0]]
    hidden = (wanted * 9 / (wanted * wanted).sum(dim=1, keepdim=True))[None]
    inputs = [tensor.to(dtype) for tensor in (hidden, weight, 0 * bias)]
    (exact, *_) = full(made("ntl_was"), [tensor.double() for tensor in inputs], labels)[1]
    ((found,), (trained, *_)) = (
        chunked(made("ntl_was"), inputs, labels, frozen=frozen)[1] for frozen in (True, False)
    )
    errors = [(each.double() - exact).norm() / exact.norm() for each in (found, trained)]
    assert errors[0] <= 1.1 * errors[1] + torch.finfo(dtype).eps


@pytest.mark.parametrize("texts", [["7"], ["a"], ["ab", "c"], ["_"], ["__", "__"]])
@pytest.mark.parametrize("name", ["ce", "digit_ce", "ntl_was", "ntil", "ntil_published", "nl_ntl"])
def test_one_row_no_rows_and_no_numbers(name, texts):
    labels = labels_of(*texts)
    inputs = head(labels)
    for frozen in (False, True):
        found = chunked(made(name), inputs, labels, frozen=frozen)
        assert_same(found, full(made(name), inputs, labels), rtol=1e-9, atol=1e-12)
        assert all(gradient.isfinite().all() for gradient in found[1])


def test_without_bias_and_with_a_weight_that_is_not_contiguous():
    _, labels = batch(3)
    hidden, weight, _ = head(labels)
    leaf = weight.T.contiguous().requires_grad_()
    result = made("ntl_was").from_hidden(hidden, leaf.T, labels, shift=False)
    (found,) = torch.autograd.grad(result.loss, leaf)
    expected = full(made("ntl_was"), [hidden, weight], labels)
    torch.testing.assert_close(result.loss, expected[0].loss)
    torch.testing.assert_close(found.T, expected[1][1])


def test_counts_of_the_step_are_divided_by():
    from mm_numeric.losses.normalization import Counts

    _, labels = batch(4)
    inputs = head(labels)
    whole = made("ntl_was")
    counts = Counts.of(labels[labels != IGNORE_INDEX], whole.spans(labels))
    expected = chunked(whole, inputs, labels)
    parts = [
        chunked(whole, [inputs[0][i : i + 1], *inputs[1:]], labels[i : i + 1], counts=counts)
        for i in range(len(labels))
    ]
    torch.testing.assert_close(sum(result.loss for result, _ in parts), expected[0].loss)
    for place in (1, 2):
        added = sum(gradients[place] for _, gradients in parts)
        torch.testing.assert_close(added, expected[1][place])


@pytest.mark.slow
def test_gradcheck():
    """Every path: cross-entropy, the scores of the number tokens, and the normaliser."""
    labels = labels_of("_1.5", "a-20")
    terms = (
        TermSpec(name="emd_exp"),
        TermSpec(name="ntl_was", options={"reweigh": True}),
        TermSpec(name="nl_ntl"),
        TermSpec(name="gce"),
    )
    whole = made(ObjectiveSpec(terms=terms, numeric_weight=0.7))
    spans = whole.spans(labels)
    assert torch.autograd.gradcheck(
        lambda h, w, b: whole.from_hidden(h, w, labels, spans, bias=b, shift=False).loss,
        [tensor.requires_grad_() for tensor in head(labels)],
    )


def test_a_second_derivative_is_rejected():
    """Rather than answered with a number that leaves half of it out."""
    _, labels = batch(0)
    hidden, weight, bias = (tensor.requires_grad_() for tensor in head(labels))
    for loss in (
        made("ntl_was").from_hidden(hidden, weight, labels, bias=bias, shift=False).loss,
        made("ntl_was")(functional.linear(hidden, weight, bias), labels, shift=False).loss,
    ):
        (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.square().sum().backward()


@pytest.mark.parametrize("name", ["ce", "ntl_was", "ntil_soft"])
@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_is_that_of_a_linear_layer(name, backward_inside):
    """Weights of float32, a product in bf16; gradients of float32."""
    _, labels = batch(5)
    inputs = head(labels, torch.float32)
    found = []
    for run in ("from_hidden", "logits"):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        with torch.autocast("cpu", torch.bfloat16):
            if run == "from_hidden":
                loss = made(name).from_hidden(*leaves[:2], labels, bias=leaves[2], shift=False).loss
            else:
                loss = made(name)(functional.linear(*leaves), labels, shift=False).loss
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        found.append((loss, [leaf.grad for leaf in leaves]))
    assert all(gradient.dtype == torch.float32 for gradient in found[0][1])
    (loss, gradients), (expected, wanted) = found
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(gradients, wanted, strict=True):
        assert (mine - theirs).norm() <= torch.finfo(torch.bfloat16).eps * theirs.norm()
    exact = chunked(made(name), [tensor.double() for tensor in inputs], labels)
    assert loss.item() == pytest.approx(exact[0].loss.item(), rel=0.01)
    assert not torch.equal(loss, chunked(made(name), inputs, labels)[0].loss)  # it was cast


@pytest.mark.parametrize("shape", [(SIZE, WIDTH + 1), (WIDTH, SIZE), (SIZE * WIDTH,), (0,)])
def test_a_weight_of_another_shape_is_one_sentence(shape):
    """(0,) is what a rank sees of a weight that is split."""
    labels = labels_of("12", "ab")
    with pytest.raises(ValueError, match=r"weight of the head must be \[v, 12\], not \[") as e:
        made("ce").from_hidden(torch.zeros(2, 2, WIDTH), torch.zeros(shape), labels, shift=False)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("hidden", "labels", "message"),
    [
        ((2, 3, WIDTH), (2, 4), r"an objective takes hidden states \[b, t, :\] with labels"),
        ((6, WIDTH), (6,), r"spans=None"),
    ],
)
def test_shapes_that_do_not_belong_together_are_rejected(hidden, labels, message):
    with pytest.raises(ValueError, match=message):
        made("ce").from_hidden(
            torch.zeros(hidden), torch.zeros(SIZE, WIDTH), torch.zeros(labels).long(), shift=False
        )


def test_a_head_of_another_tokenizer_and_a_label_outside_are_rejected():
    labels = labels_of("12", "ab")
    with pytest.raises(ValueError, match="is not one of the 5 tokens of the head"):
        made("ce").from_hidden(torch.zeros(2, 2, WIDTH), torch.zeros(5, WIDTH), labels, shift=False)
    with pytest.raises(ValueError, match=f"the label {SIZE} is not one of the {SIZE} tokens"):
        made("ce").from_hidden(
            torch.zeros(2, 2, WIDTH),
            torch.zeros(SIZE, WIDTH),
            torch.full_like(labels, SIZE),
            shift=False,
        )


# Memory

ROWS, TOKENS = 256, 20_000
MANY = NumberVocabulary(tuple(NumberToken(700 + i, float(i), "0", str(i)) for i in range(10)))


def large():
    """Return hidden states [n, 32], a weight [20,000, 32], labels [n] and spans."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(TOKENS, (ROWS,), generator=generator)
    labels[::4] = 700 + torch.arange(ROWS // 4) % 10
    hidden = torch.randn(ROWS, 32, generator=generator).requires_grad_()
    weight = (torch.randn(TOKENS, 32, generator=generator) / 8).requires_grad_()
    rows = torch.arange(0, ROWS, 4)
    spans = NumberSpans.from_labels(labels_of("12"), VOCABULARY)
    count = len(rows)
    fields = {
        **vars(spans),
        "position": rows,
        "target": torch.arange(count) % 10,
        "place": 0 * rows,
        "from_right": 0 * rows,
        "worth": torch.ones(count).double(),
    }
    fields |= {"number": torch.arange(count), "value": torch.ones(count).double()}
    fields |= {name: torch.zeros(count).long() for name in ("sample", "role", "group")}
    return hidden, weight, labels, NumberSpans(**fields | {"sign": torch.ones(count).long()})


def peak(step, tmp_path):
    """Return the largest number of bytes that was held at once, next to what was there before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    memory = [event for event in events if event["name"] == "[memory]"]
    held = most = 0
    for event in sorted(memory, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most


def test_the_peak_is_under_a_fifth_of_that_of_cross_entropy(monkeypatch, tmp_path):
    """Above the inputs and the gradient of the head, which no one can do without."""
    hidden, weight, labels, spans = large()
    made = NumericLoss("ntl_was", vocabulary=MANY)
    monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", 16 * TOKENS)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def ours():
        made.from_hidden(hidden, weight, labels, spans, shift=False).loss.backward()

    def plain():
        functional.cross_entropy(functional.linear(hidden, weight), labels).backward()

    peaks = []
    for step in (ours, plain):
        hidden.grad = weight.grad = None
        peaks.append(peak(step, tmp_path) - weight.numel() * 4)
    assert peaks[1] > 2 * ROWS * TOKENS * 4  # the measure sees logits and their gradient
    assert 0 < peaks[0] < peaks[1] / 5


class Sizes(TorchDispatchMode):
    """Notes the shape of every tensor that is made."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        self.shapes += [tuple(o.shape) for o in outputs if isinstance(o, torch.Tensor)]
        return result


@pytest.mark.parametrize("frozen", [False, True])
def test_no_tensor_of_all_logits_is_ever_made(monkeypatch, frozen):
    hidden, weight, labels, spans = large()
    weight.requires_grad_(not frozen)
    made = NumericLoss("ntl_was", vocabulary=MANY)
    for name in ("_CPU_CHUNK", "_FROZEN_CPU_CHUNK"):
        monkeypatch.setattr(cross_entropy, name, 16 * TOKENS)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with Sizes() as sizes:
        made.from_hidden(hidden, weight, labels, spans, shift=False).loss.backward()
    elements = [torch.Size(shape).numel() for shape in sizes.shapes]
    assert (16, TOKENS) in sizes.shapes  # a chunk
    # Nothing is larger than the weight or a chunk.
    assert max(elements) == weight.numel() < ROWS * TOKENS
    # A frozen head has no gradient, and none is calculated: only views of the weight have its size.
    assert (weight.grad is None) == frozen
    assert ((TOKENS, 32) in sizes.shapes) == (not frozen)
    assert hidden.grad.any(dim=1).all()
