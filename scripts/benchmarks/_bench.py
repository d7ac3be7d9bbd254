"""Contenders of the loss benchmarks, and the synthetic batches on which they are compared.

Axes    n supervised rows, v vocabulary, k number tokens, d width of the model
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from _measure import Block, Contender
from torch import Tensor
from torch.nn import functional

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import make_term
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.registry import TERMS

CE = "torch CE"
FULL = "CE, from logits"
PADDED = "CE, from logits [b, t, v] and labels [b, t], shift=True"
IGNORED = (0.0, 0.5, 0.95)
"""Shares of the labels [b, t] without a loss: an answer alone, a prompt as long, a long prompt."""

ALONE = "A term alone, from logits"
HIDDEN_TRAINED = "From hidden states, head trained"
HIDDEN_FROZEN = "From hidden states, head frozen"
HIDDEN = ("ce", "ntl_was", "ntil_soft")
SAMPLES = 4
DIGITS = {str(digit): 15 + digit for digit in range(10)}  # the ids of Qwen2

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The size of a training step."""

    vocabulary: int = 151936
    rows: int = 1024
    digits: float = 0.3
    """The share of the rows whose label is a digit; above 0.75 no text is left between numbers."""

    width: int = 896
    """Width of the hidden states, as in Qwen2-0.5B."""

    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def labels(self) -> Tensor:
        """Return labels [n] on the CPU: three-digit numbers between text tokens."""
        wanted = torch.randint(30, self.vocabulary, (self.rows,))
        starts = torch.linspace(0, self.rows - 3, round(self.rows * self.digits / 3)).long()
        at = (starts[:, None] + torch.arange(3)).flatten()
        wanted[at] = 15 + torch.randint(10, (len(at),))
        return wanted

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return normal noise that requires a gradient."""
        noise = torch.randn(*shape, device=self.device, dtype=self.dtype)
        return noise.mul_(scale).requires_grad_()


class Stand:
    """Minimal tokenizer with ten digits and a vocabulary of a given size."""

    name_or_path = "made up"

    def __init__(self, size: int) -> None:
        """Set the size of the vocabulary."""
        self.size = size

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return self.size

    def add_tokens(self, _: list[str]) -> int:
        """Return 0: no token has to be added."""
        return 0

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens used by the losses."""
        return {**DIGITS, "a": 0, ".": 13}

    def convert_tokens_to_ids(self, token: str) -> int:
        """Return the id of a token."""
        return self.get_vocab()[token]


def known_names() -> list[str]:
    """Return the presets, and the terms that are in no preset, that apply to these batches.

    Terms of boxes and times do not apply: label ids have no roles, so their loss would be 0.
    """
    terms = [name for name in TERMS if make_term(name, {}).per not in ("box", "time")]
    specs = {n: s for n, s in PRESETS.items() if all(t.name in terms for t in s.terms)}
    used = {term.name for spec in specs.values() for term in spec.terms}
    return [*specs, *(name for name in terms if name not in used)]


def objective_of(name: str, setting: Setting) -> NumericLoss:
    """Return the objective of a preset, or CE + 0.3 times one term."""
    spec = PRESETS[name] if name in PRESETS else ObjectiveSpec(terms=(TermSpec(name=name),))
    return NumericLoss(spec, Stand(setting.vocabulary))


def ntloss_forms(vocabulary: int, *, reweigh: bool = False) -> dict[str, tuple[str, Step]]:
    """Return the losses of the ntloss package, by the name of the equivalent preset.

    Args:
        vocabulary: Number of tokens of the output head.
        reweigh: Whether to penalise probability on text; on in the package, off in its paper.

    Raises:
        ImportError: If the package is missing.
    """
    from ntloss import NTLoss
    from ntloss.core import NTLossDotProduct, NumberLevelLoss

    common = {"tokenizer": Stand(vocabulary), "vocab_size": vocabulary, "reweigh": reweigh}
    return {
        "ntl_was": ("WAS", NTLoss(**common)),
        "ntl_mse": ("MSE", NTLossDotProduct(**common, loss_function=functional.mse_loss)),
        "ntl_mae": ("MAE", NTLossDotProduct(**common, loss_function=functional.l1_loss)),
        "ntl_huber": ("Huber", NTLossDotProduct(**common, loss_function=functional.huber_loss)),
        "nl_ntl": ("number level", NumberLevelLoss(**common)),
    }


def blocks(
    setting: Setting, names: Sequence[str], repeats: int, *, time_hidden: bool = False
) -> list[Block]:
    """Return all comparisons at one size.

    Args:
        setting: Size of the step.
        names: Names of presets and terms.
        repeats: Number of timed rounds.
        time_hidden: Whether to time ``NumericLoss.from_hidden`` too; by default only its memory is
            measured, with the last of ``HIDDEN``, because the products with the head are slow.
    """
    torch.manual_seed(0)
    wanted = setting.labels()
    try:
        ntloss = ntloss_forms(setting.vocabulary)
    except ImportError:
        ntloss = {}
    made = [full_block(setting, wanted, names, ntloss, repeats)]
    logits = made[0].contenders[0].inputs
    made += [padded_block(setting, wanted, names, share, repeats, logits) for share in IGNORED]
    made += alone_blocks(setting, wanted, names, ntloss, repeats, logits)
    chosen = [name for name in HIDDEN if name in names]
    if not time_hidden:
        chosen, repeats = chosen[-1:], 0
    return [*made, *from_hidden_blocks(setting, wanted, chosen, repeats)]


def full_block(
    setting: Setting,
    wanted: Tensor,
    names: Sequence[str],
    ntloss: dict[str, tuple[str, Step]],
    repeats: int,
) -> Block:
    """Compare CE with numeric terms to torch's CE alone, all from logits [n, v]."""
    logits = (setting.random(setting.rows, setting.vocabulary),)
    labels = wanted.to(setting.device)
    contenders = [
        Contender(
            name=CE, step=lambda z: functional.cross_entropy(z.float(), labels), inputs=logits
        )
    ]
    for name in names:
        made = objective_of(name, setting)
        spans = made.spans(wanted[None]).to(setting.device)
        form, published = ntloss.get(name, ("", None))
        rival = f"{CE} + ntloss {form}" if published else ""
        contenders.append(
            Contender(
                name=name, step=_objective_step(made, labels, spans), inputs=logits, rival=rival
            )
        )
        if published:
            step = _plus_cross_entropy(published, labels)
            contenders.append(Contender(name=rival, step=step, inputs=logits))
    return Block(title=FULL, contenders=contenders, repeats=repeats)


def padded_block(
    setting: Setting,
    wanted: Tensor,
    names: Sequence[str],
    ignored: float,
    repeats: int,
    logits: tuple[Tensor, ...],
) -> Block:
    """Compare the documented call with torch's CE: all logits, and labels like ``input_ids``.

    The time to find the numbers in the labels is included. ``ignored`` is the share of the labels
    of each sample, at its start, that have no loss.
    """
    labels = wanted.view(SAMPLES, -1).clone()
    labels[:, : round(labels.shape[1] * ignored)] = IGNORE_INDEX
    labels = labels.to(setting.device)
    contenders = [Contender(name=CE, step=partial(_padded_cross_entropy, labels), inputs=logits)]
    for name in names:
        step = partial(_padded_objective, objective_of(name, setting), labels)
        contenders.append(Contender(name=name, step=step, inputs=logits))
    return Block(title=f"{PADDED}, {ignored:.0%} ignored", contenders=contenders, repeats=repeats)


def _padded_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Return torch's CE as transformers computes it: shifted labels, no copy of the logits."""
    shifted = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    return functional.cross_entropy(logits.float(), shifted.flatten())


def _padded_objective(made: NumericLoss, labels: Tensor, logits: Tensor) -> Tensor:
    """Return the loss of an objective for all logits and padded labels."""
    return made(logits.unflatten(0, labels.shape), labels, shift=True).loss


def _objective_step(made: NumericLoss, labels: Tensor, spans: NumberSpans) -> Step:
    """Return the step from logits to the loss of an objective."""
    return lambda z: made(z, labels, spans).loss


def _plus_cross_entropy(published: Step, labels: Tensor) -> Step:
    """Return the step of torch's CE plus 0.3 times a loss of ntloss, as in its paper."""
    return lambda z: (
        functional.cross_entropy(z.float(), labels) + 0.3 * published(z.float()[None], labels[None])
    )


def alone_blocks(
    setting: Setting,
    wanted: Tensor,
    names: Sequence[str],
    ntloss: dict[str, tuple[str, Step]],
    repeats: int,
    logits: tuple[Tensor, ...],
) -> list[Block]:
    """Compare single terms with the equivalent losses of ntloss, from the same logits [n, v].

    Both backward passes return a gradient of the size of the logits, nearly all zeros. On a CPU
    ours are pages that the system zeroes on first access, so that a part of the cost is paid by the
    reader of the gradient. Ours also computes the softmax over the vocabulary at each number token.
    """
    labels = wanted[None].to(setting.device)
    made = []
    forms = [(name, *ntloss[name], False) for name in names if name in ntloss]
    if "ntl_was" in ntloss and "ntl_was" in names:
        forms.insert(
            0, ("ntl_was", *ntloss_forms(setting.vocabulary, reweigh=True)["ntl_was"], True)
        )
    for name, form, published, reweigh in forms:
        how = "alone, reweighed" if reweigh else "alone"
        ours = _term_alone(name, wanted, setting, reweigh=reweigh)
        theirs = partial(_ntloss_alone, published, labels)
        pair = [
            Contender(name=f"ntloss {form} {how}", step=theirs, inputs=logits),
            Contender(name=f"{name} {how}", step=ours, inputs=logits),
        ]
        made.append(Block(title=ALONE, contenders=pair, repeats=repeats))
    return made


def _ntloss_alone(published: Step, labels: Tensor, logits: Tensor) -> Tensor:
    """Return the loss of the ntloss package."""
    return published(logits.float()[None], labels)


def _term_alone(name: str, wanted: Tensor, setting: Setting, *, reweigh: bool) -> Step:
    """Return the step from logits to the mean of one term, without cross-entropy."""
    term = TermSpec(name=name, options={"reweigh": True} if reweigh else {})
    spec = ObjectiveSpec(terms=(term,), ce_weight=0.0, numeric_weight=1.0)
    made = NumericLoss(spec, Stand(setting.vocabulary))
    spans = made.spans(wanted[None]).to(setting.device)
    labels = wanted.to(setting.device)
    return lambda logits: made(logits, labels, spans).loss


def from_hidden_blocks(
    setting: Setting, wanted: Tensor, names: Sequence[str], repeats: int
) -> list[Block]:
    """Compare ``NumericLoss.from_hidden`` with torch's CE on ``hidden @ head.T``."""
    if not names:
        return []
    hidden = setting.random(setting.rows, setting.width)
    # Logits of variance 1: larger ones cause denormal probabilities, which are very slow.
    trained = setting.random(setting.vocabulary, setting.width, scale=setting.width**-0.5)
    labels = wanted.to(setting.device)

    def full(h: Tensor, head: Tensor) -> Tensor:
        return functional.cross_entropy((h @ head.T).float(), labels)

    def from_hidden(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        made = objective_of(name, setting)
        spans = made.spans(wanted[None]).to(setting.device)
        return lambda h, head: made.from_hidden(h, head, labels, spans).loss

    found = []
    for title, head in ((HIDDEN_FROZEN, trained.detach()), (HIDDEN_TRAINED, trained)):
        steps = {f"{CE} on all logits": full, **{f"from_hidden {n}": from_hidden(n) for n in names}}
        contenders = [
            Contender(
                name=name,
                step=step,
                inputs=(hidden, head),
                head_gradient_bytes=head.nbytes if head.requires_grad else 0,
            )
            for name, step in steps.items()
        ]
        found.append(Block(title=title, contenders=contenders, repeats=repeats))
    return found
