"""Boxes and times: formulas that anyone can check, one shape at a time."""

import pytest
import torch
from own_terms import BoxDistance, BoxOverlap, TimeDistance
from term_losses import certain, digit_logits, marked_spans, random_scores
from tokens import SIZE, TOKENIZER, VOCABULARY, ToyTokenizer, labels_of

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import make_term
from mm_numeric.numbers.spans import NumberSpans, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberVocabulary

BOX, TIME = "x y x y", "hour minute"
TERMS = {
    f"own_terms:{type(term).__name__}": term
    for term in (BoxDistance(), BoxOverlap(), TimeDistance())
}
OF_BOXES = [name for name, term in TERMS.items() if term.per == "box"]


def losses_of(term, scores, text, roles):
    """Return the losses of a term for digit scores [k, 10], where the label is a text."""
    return term(digit_logits(scores, scores.logsumexp(-1)), marked_spans((text, roles)))


def of(term, predicted, wanted, roles=BOX):
    """Return the loss of a term for a model that is certain of a text."""
    return losses_of(term, certain(predicted, height=800.0), wanted, roles).item()


def expected_values(scores, text):
    """Return the number that the model expects for each number of a text of whole numbers."""
    values, at = [], 0
    for word in text.replace(":", " ").replace(",", " ").split():
        value = 0.0
        for i in range(len(word)):
            probs = scores[at + i].softmax(0).tolist()
            digit = sum(prob * d for d, prob in enumerate(probs))
            value += digit * 10 ** (len(word) - 1 - i)
        values.append(value)
        at += len(word)
    return values


def in_order(box):
    """Return a box with its corners in order."""
    x1, y1, x2, y2 = box
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def giou_loss(one, other):
    """Return 1 - GIoU of two boxes that are not both without area, as in arXiv 1902.09630."""
    (a1, b1, a2, b2), (c1, d1, c2, d2) = in_order(one), in_order(other)
    shared = max(0.0, min(a2, c2) - max(a1, c1)) * max(0.0, min(b2, d2) - max(b1, d1))
    covered = (a2 - a1) * (b2 - b1) + (c2 - c1) * (d2 - d1) - shared
    around = (max(a2, c2) - min(a1, c1)) * (max(b2, d2) - min(b1, d1))
    return 1 - (shared / covered - (around - covered) / around)


def dial(one, other):
    """Return the circular distance of two times as a share of half a dial."""
    apart = abs(60 * one[0] + one[1] - 60 * other[0] - other[1]) % 720
    return min(apart, 720 - apart) / 360


TEXTS = ["10 20 300 45", "7 7 9 88", "640 480 0 999", "1 2 3 4"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("sharpness", [1, 4, 30])
def test_boxes_equal_the_loop(text, sharpness):
    wanted = [float(word) for word in text.split()]
    for seed in range(3):
        scores = sharpness * random_scores(len(text.replace(" ", "")), seed)
        predicted = expected_values(scores, text)
        sides = zip(in_order(predicted), in_order(wanted), strict=True)
        l1 = sum(abs(one - other) for one, other in sides) / 4
        assert losses_of(BoxDistance(), scores, text, BOX).item() == pytest.approx(l1 / 1000)
        assert losses_of(BoxDistance(scale=7), scores, text, BOX).item() == pytest.approx(l1 / 7)
        found = losses_of(BoxOverlap(), scores, text, BOX).item()
        assert found == pytest.approx(giou_loss(predicted, wanted), abs=1e-7)


@pytest.mark.parametrize("text", ["7:05", "12:59", "1:00", "11:30"])
@pytest.mark.parametrize("sharpness", [1, 30])
def test_times_equal_the_loop(text, sharpness):
    wanted = [float(word) for word in text.split(":")]
    for seed in range(5):
        scores = sharpness * random_scores(len(text) - 1, seed)
        expected = dial(expected_values(scores, text), wanted)
        assert losses_of(TimeDistance(), scores, text, TIME).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("predicted", "wanted", "overlap"),
    [
        ("10 20 30 40", "10 20 30 40", 0),
        ("30 40 10 20", "10 20 30 40", 0),  # corners in the other order
        ("30 20 10 40", "10 20 30 40", 0),
        ("10 10 20 20", "00 00 40 40", 1 - 100 / 1600),  # one in the other: nothing else around
        ("00 00 40 40", "10 10 20 20", 1 - 100 / 1600),
        ("10 10 20 20", "20 10 30 20", 1),  # they touch along an edge
        ("10 10 20 20", "20 20 30 30", 1 + 200 / 400),  # at a corner
        ("10 10 20 20", "40 10 50 20", 1 + 200 / 400),  # apart
        ("00 00 10 10", "89 89 99 99", 2 - 200 / 9801),  # far apart
        ("15 10 25 20", "10 10 20 20", 1 - 50 / 150),
    ],
)
def test_the_overlap_of_boxes(predicted, wanted, overlap):
    assert of(BoxOverlap(), predicted, wanted) == pytest.approx(overlap, abs=1e-8)


@pytest.mark.parametrize(
    ("predicted", "wanted", "overlap"),
    [
        ("10 20 10 20", "10 20 10 20", 0),  # a point for the same point
        ("10 20 10 20", "11 20 11 20", 2),  # for its neighbour
        ("10 20 10 20", "50 60 50 60", 2),
        ("10 20 10 20", "10 20 30 40", 1),  # on the box
        ("10 20 30 40", "10 20 10 20", 1),
        ("10 10 50 10", "10 10 50 10", 0),  # a line for itself
        ("10 10 50 10", "30 10 70 10", 1 - 20 / 60),  # for one that it meets, as if both were thick
        ("10 10 20 10", "40 10 50 10", 1 + 20 / 40),  # for one that it does not meet
        ("10 10 50 10", "10 30 50 30", 2),
    ],
)
def test_boxes_without_area_have_different_losses(predicted, wanted, overlap):
    """Plain GIoU is 0 / 0 here."""
    assert of(BoxOverlap(), predicted, wanted) == pytest.approx(overlap, abs=1e-6)


def test_a_corner_outside_of_the_image_keeps_its_sign():
    """The digits are off by one to the outside: -6 for -5."""
    predicted, wanted = "-6 -6 4 4", "-5 -5 4 4"
    assert of(BoxOverlap(), predicted, wanted) == pytest.approx(1 - 81 / 100, abs=1e-8)
    assert of(BoxDistance(scale=1), predicted, wanted) == pytest.approx(0.5)


def test_a_location_token_of_a_negative_value_keeps_its_sign():
    """One token for each value from -8 to 8: a box from (-4, -4) to (3, 3) for one from -5 to 3."""
    tokens = {f"<{value}>": value for value in range(-8, 9)}
    ids = {token: i for i, token in enumerate(tokens)}
    vocabulary = NumberVocabulary.from_tokens(ToyTokenizer(ids), tokens)
    labels = torch.tensor([ids[f"<{value}>"] for value in (-5, -5, 3, 3)])
    numbers = numbers_in_labels(labels.tolist(), vocabulary)
    numbers = [n._replace(role=role, group=0) for n, role in zip(numbers, "xyxy", strict=True)]
    spans = NumberSpans.build([numbers], [{i: i for i in range(4)}])
    logits = torch.zeros(4, len(ids))
    logits[range(4), [ids[f"<{value}>"] for value in (-4, -4, 3, 3)]] = 800.0
    scores = digit_logits(logits, logits.logsumexp(-1), torch.arange(-8.0, 9.0).double())
    assert BoxOverlap()(scores, spans).item() == pytest.approx(1 - 49 / 64, abs=1e-6)


@pytest.mark.parametrize("text", ["10 10 50 10", "10 20 10 20", "10 20 30 40"])
@pytest.mark.parametrize("height", [5.0, 20.0, 40.0, 800.0])
def test_the_gradient_near_a_box_without_area_is_bounded(text, height):
    """Where the model is surer and surer of it."""
    scores = certain(text, height=height).requires_grad_()
    losses_of(BoxOverlap(), scores, text, BOX).sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.abs().max() < 10


@pytest.mark.parametrize(
    ("predicted", "wanted", "distance"),
    [
        ("12:59", "01:00", 1 / 360),
        ("01:00", "12:59", 1 / 360),
        ("06:00", "12:00", 1.0),
        ("12:00", "06:00", 1.0),
        ("12:00", "12:00", 0.0),
        ("12:30", "06:00", 330 / 360),
        ("11:59", "12:00", 1 / 360),
        ("03:00", "09:01", 359 / 360),
        ("24:00", "12:00", 0.0),  # once more round
        ("99:99", "01:00", min(5979 % 720, 720 - 5979 % 720) / 360),
    ],
)
def test_times_go_round_the_dial(predicted, wanted, distance):
    assert of(TimeDistance(), predicted, wanted, TIME) == pytest.approx(distance, abs=1e-12)


@pytest.mark.parametrize("name", OF_BOXES)
def test_the_gradient_moves_a_box_that_is_apart_towards_the_label(name):
    """The label is to the right and below."""
    label, scores = "70 70 90 90", certain("10 10 30 30", height=3.0).requires_grad_()
    losses_of(TERMS[name], scores, label, BOX).sum().backward()
    stepped = (scores - 50 * scores.grad / scores.grad.norm()).detach()
    before, after = (expected_values(s.detach(), label) for s in (scores, stepped))
    assert sum(after) > sum(before) + 10
    for at in (4, 6):  # the tens of the near corner: more of 9 costs less, more of 0 costs more
        assert scores.grad[at, 9] < 0 < scores.grad[at, 0]


def test_the_gradient_of_a_time_goes_the_shorter_way():
    """From 11:50 to 1:10 on over twelve, and not back through the morning."""
    scores = certain("11:50", height=12.0).requires_grad_()
    losses_of(TimeDistance(), scores, "01:10", TIME).sum().backward()
    assert scores.grad[1, 2] < 0 < scores.grad[1, 0]  # 12 costs less, 10 costs more


@pytest.mark.parametrize("name", OF_BOXES)
def test_gradcheck_of_boxes_that_are_apart(name):
    scores = certain("1 1 2 2", height=3.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses_of(TERMS[name], z, "7 7 9 9", BOX), scores)


def test_gradcheck_of_times():
    scores = random_scores(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses_of(TimeDistance(), z, "7:05", TIME), scores)


# Within an objective

MIXED = [
    ("1 2 5 7, 7:05", f"{BOX} | {TIME}"),  # one of each
    ("ab, 42", "free"),
    ("3 4 6 8, 1 1 2 2", f"{BOX} | {BOX}"),
    ("1 2 3, 9", "x y x | hour"),  # three coordinates and half a time
    ("6:30", TIME),
]


def made(*names, **changes):
    """Return an objective of cross-entropy and some terms."""
    terms = tuple(TermSpec(name=name) for name in names)
    return NumericLoss(
        ObjectiveSpec(terms=terms, numeric_weight=0.7, **changes), vocabulary=VOCABULARY
    )


def rows(answers, seed=0):
    """Return logits [n, v] and labels [n] of answers."""
    labels = torch.tensor([token for text, _ in answers for token in TOKENIZER.ids(text)])
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), SIZE, generator=generator, dtype=torch.float64), labels


def test_groups_with_other_roles_have_no_loss():
    spans = marked_spans(*MIXED)
    counts = Counts.of(torch.zeros(40), spans)
    assert (counts.boxes, counts.times, counts.numbers) == (3, 2, 21)
    result = made(*TERMS)(*rows(MIXED), spans)
    assert {name: result.sums[name].items.item() for name in TERMS} == {
        "own_terms:BoxDistance": 3, "own_terms:BoxOverlap": 3, "own_terms:TimeDistance": 2,
    }  # fmt: skip


@pytest.mark.parametrize("reduction", ["items", "samples"])
def test_an_objective_takes_the_mean_over_shapes(reduction):
    logits, labels = rows(MIXED)
    spans = marked_spans(*MIXED)
    result = made(*TERMS, reduction=reduction)(logits, labels, spans, shift=False)
    ids = [token.id for token in VOCABULARY.tokens]
    for name, term in TERMS.items():
        means, at = [], 0
        for text, roles in MIXED:
            scores = logits[at : at + len(text), ids]
            at += len(text)
            scores = scores[[i for i, character in enumerate(text) if character.isdigit()]]
            means.append(losses_of(term, scores, text, roles))
        if reduction == "items":
            expected = torch.cat(means).mean()
        else:
            expected = torch.stack([m.mean() if len(m) else m.sum() for m in means]).mean()
        torch.testing.assert_close(result.components[name], expected)


@pytest.mark.parametrize("reduction", ["items", "samples"])
def test_micro_batches_with_global_counts_add_up(reduction):
    whole = made(*TERMS, reduction=reduction)
    logits, labels = rows(MIXED)
    counts = Counts.of(labels, marked_spans(*MIXED))
    leaf = logits.clone().requires_grad_()
    expected = whole(leaf, labels, marked_spans(*MIXED))
    expected.loss.backward()
    found, parts, at = [], [], 0
    for answer in MIXED:
        here = slice(at, at := at + len(answer[0]))
        piece = logits[here].clone().requires_grad_()
        result = whole(piece, labels[here], marked_spans(answer), counts=counts)
        result.loss.backward()
        found.append(piece.grad)
        parts.append(result)
    torch.testing.assert_close(sum(part.loss for part in parts), expected.loss)
    torch.testing.assert_close(torch.cat(found), leaf.grad)
    for name, total in expected.sums.items():
        assert sum(part.sums[name].items for part in parts) == total.items
        torch.testing.assert_close(sum(part.sums[name].total for part in parts), total.total)


@pytest.mark.parametrize("answers", [[("ab, 42", "free")], [("ab", "")], []])
@pytest.mark.parametrize("reduction", ["items", "samples"])
def test_without_shapes_it_is_cross_entropy_with_a_graph(answers, reduction):
    labels = torch.tensor([t for text, _ in answers for t in TOKENIZER.ids(text)]).long()
    logits = torch.randn(len(labels), SIZE).double().requires_grad_()
    result = made(*TERMS, reduction=reduction)(logits, labels, marked_spans(*answers), shift=False)
    assert all(result.sums[name].total == 0 for name in TERMS)
    (gradient,) = torch.autograd.grad(result.loss, logits)
    (expected,) = torch.autograd.grad(
        made()(logits, labels, marked_spans(*answers), shift=False).loss, logits
    )
    assert torch.equal(gradient, expected)


def test_labels_alone_know_no_shapes():
    labels = labels_of("1 2 5 7", "7:05")
    spans = made().spans(labels)
    assert (len(spans.boxes), len(spans.times)) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_is_calculated_in_float32(dtype):
    logits, labels = rows(MIXED)
    logits = logits.to(dtype)
    spans = marked_spans(*MIXED)
    expected = made(*TERMS)(logits.double(), labels, spans, shift=False)
    leaf = logits.clone().requires_grad_()
    result = made(*TERMS)(leaf, labels, spans, shift=False)
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    result.loss.backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("name", TERMS)
def test_numbers_of_eighteen_digits_are_finite(name):
    """These terms are in units of the answer, so that 10 ** 39 of them are no float32."""
    text = " ".join(["9" * 18] * 4) if name in OF_BOXES else ":".join(["9" * 18] * 2)
    scores = random_scores(sum(map(str.isdigit, text))).float().requires_grad_()
    losses = losses_of(TERMS[name], scores, text, BOX if name in OF_BOXES else TIME)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("name", TERMS)
def test_nan_is_never_hidden(name):
    text, roles = ("1 2 5 7", BOX) if name in OF_BOXES else ("7:05", TIME)
    scores = random_scores(sum(map(str.isdigit, text)))
    scores[0] = torch.nan
    assert losses_of(TERMS[name], scores, text, roles).isnan().all()


@pytest.mark.parametrize("scale", [0, -1.0])
def test_a_scale_that_divides_by_zero_is_rejected(scale):
    with pytest.raises(ValueError, match="BoxDistance: scale must be > 0, not"):
        make_term("own_terms:BoxDistance", {"scale": scale})
