"""Named training losses (presets): cross-entropy (CE) plus weighted numeric losses.

The Number Token Loss (NTL, arXiv 2411.02083) is added to CE with weight 0.3. The Numerical Token
Integrity Loss (NTIL, arXiv 2505.13077) is the sum of ``emd_exp``, a loss of each digit, and 0.2
times ``relative`` and ``magnitude``, two losses of each number. As in its published code, this sum
is scaled to 0.3 times CE, and then added to CE.

Some defaults of the presets differ from the papers. To get the published variants, set ``scale:
published`` for NTL (it concerns tokens with several digits), and ``reduction: samples`` with
``digit_runs: true`` for NTIL.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.registry import TERMS, choose, unknown
from mm_numeric.settings import read_dataclass

_NTIL = (
    TermSpec(name="emd_exp", weight=1.0),
    TermSpec(name="relative", weight=0.2),
    TermSpec(name="magnitude", weight=0.2),
)
_NTIL_SOFT = (
    _NTIL[0],
    TermSpec(name="relative_soft", weight=0.2),
    TermSpec(name="magnitude_soft", weight=0.2),
)


def _plus(term: str, numeric_weight: float = 0.3) -> ObjectiveSpec:
    return ObjectiveSpec(terms=(TermSpec(name=term),), numeric_weight=numeric_weight)


def _ratio(*terms: TermSpec) -> ObjectiveSpec:
    """Return the settings of CE plus numeric losses. Their sum is scaled to 0.3 times CE."""
    return ObjectiveSpec(terms=terms, balance="ratio")


def _in_place_of_ce(name: str, *more: TermSpec) -> ObjectiveSpec:
    """Return settings with which the loss ``name`` replaces CE at the number tokens."""
    terms = TermSpec(name=name), *more
    return ObjectiveSpec(terms=terms, numeric_weight=1.0, ce_tokens="text")


PRESETS: Mapping[str, ObjectiveSpec] = {
    "ce": ObjectiveSpec(),
    # Control: Adam is almost invariant to the scale of a loss, so this shows how much runs vary.
    "ce_times_1.3": ObjectiveSpec(ce_weight=1.3),
    # Control: the cross-entropy of number tokens counts twice, whatever the tokens' values.
    "ce_numbers_times_2": ObjectiveSpec(
        terms=(TermSpec(name="digit_ce", options={"places": "none"}),), numeric_weight=1.0
    ),
    "digit_ce": _in_place_of_ce("digit_ce"),
    "gce": _in_place_of_ce("gce"),
    "gce+ntl_was": _in_place_of_ce("gce", TermSpec(name="ntl_was", weight=0.3)),
    "ntl_was": _plus("ntl_was"),
    "ntl_mse": _plus("ntl_mse"),
    "ntl_mae": _plus("ntl_mae"),
    "ntl_huber": _plus("ntl_huber"),
    "nl_ntl": _plus("nl_ntl"),
    "raft": _in_place_of_ce("raft"),
    "rps": _plus("rps"),  # no published weight was found
    "emd": _ratio(TermSpec(name="emd")),
    "emd_exp": _ratio(TermSpec(name="emd_exp")),
    "ntil": _ratio(*_NTIL),
    "ntil_soft": ObjectiveSpec(terms=_NTIL_SOFT),
}

SUMMARIES: Mapping[str, str] = {
    "ce": "cross-entropy (CE): every wrong digit has the same loss",
    "digit_ce": "CE with more weight on the first digits of a number",
    "gce": "CE with a Gaussian target: values next to the label get some probability",
    "ntl_was": "CE plus the expected distance between the predicted token and the label (NTL)",
    "ntl_mse": "CE plus the squared error of the expected token value (NTL)",
    "emd": "CE plus the expected distance of each digit, scaled to CE",
    "ntil": "CE plus emd with weights by place, and two losses of the whole number, scaled to CE",
    "ntil_soft": "ntil with a gradient where the model is certain of a wrong digit",
    "rps": "CE plus a proper score, which noisy labels do not bias",
}
"""One sentence for each of the main presets, which ``mm-numeric ls`` lists first."""


def read_spec(value: Any, where: str) -> ObjectiveSpec:
    """Read the settings of an objective from the name of a preset or from a mapping.

    The mapping may have ``preset`` (default ``ce``), and settings such as ``numeric_weight``, which
    replace the preset's values. It may also have options that only one of the preset's terms has,
    such as ``scale: published``. ``where`` is the beginning of error messages.
    """
    settings = {"preset": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise ValueError(f"{where}: name a preset ({', '.join(PRESETS)}) or use a mapping.")
    changes = dict(settings)
    preset = str(changes.pop("preset", "ce"))
    base = choose(preset, PRESETS, "objective", where)
    if not isinstance(base, ObjectiveSpec):
        raise ValueError(f"{where}: {preset!r} is not an ObjectiveSpec.")
    spec = with_changes(base, changes, where)
    for i, term in enumerate(spec.terms):
        if term.name not in TERMS and ":" not in term.name:
            raise unknown(term.name, TERMS, "loss term", f"{where}.terms.{i}.name")
    return spec


def with_changes(base: ObjectiveSpec, changes: Mapping[str, Any], where: str) -> ObjectiveSpec:
    """Return an objective's settings with changes, such as ``ce_weight=0`` or ``squash=2``.

    An option of a numeric loss, such as ``squash``, is accepted if exactly one term has it.
    """
    known = {field.name for field in fields(ObjectiveSpec)}
    settings = {**vars(base), **{name: changes[name] for name in changes if name in known}}
    terms = settings["terms"]
    if isinstance(terms, list | tuple):
        terms = [vars(term) if isinstance(term, TermSpec) else term for term in terms]
    options = {name: value for name, value in changes.items() if name not in known}
    if options:
        owners = _option_owners(terms)
        for name, value in options.items():
            if name not in owners:
                error = unknown(name, [*known, *owners], "setting", where)
                raise ValueError(
                    f"{error} Options of one of several terms belong to its entry in terms, as "
                    "{name: emd_exp, options: {growth: 1.5}}."
                )
            term = terms[owners[name]]
            terms[owners[name]] = {**term, "options": {**term.get("options", {}), name: value}}
    return read_dataclass(ObjectiveSpec, {**settings, "terms": terms}, where)


def _option_owners(terms: Any) -> dict[str, int]:
    """Map the name of each option that exactly one term has to the index of this term."""
    found: dict[str, list[int]] = {}
    for i, term in enumerate(terms if isinstance(terms, list) else ()):
        name = str(term.get("name")) if isinstance(term, Mapping) else ""
        cls = choose(name, TERMS, "loss term", "") if name in TERMS else None
        for option in fields(cls) if is_dataclass(cls) else ():
            found.setdefault(option.name, []).append(i)
    return {name: owners[0] for name, owners in found.items() if len(owners) == 1}
