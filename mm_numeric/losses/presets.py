"""Named training losses (presets): cross-entropy (CE) plus weighted numeric losses.

The Number Token Loss (NTL, arXiv 2411.02083) is added to CE with weight 0.3. The Numerical Token
Integrity Loss (NTIL, arXiv 2505.13077) is the sum of ``emd_exp``, a loss of each digit, and 0.2
times ``relative`` and ``magnitude``, two losses of each number. As in its published code, this sum
is scaled to 0.3 times CE, and then added to CE.
"""

from collections.abc import Mapping

from mm_numeric.losses.spec import ObjectiveSpec, TermSpec

_NTIL = (
    TermSpec(name="emd_exp", weight=1.0),
    TermSpec(name="relative", weight=0.2),
    TermSpec(name="magnitude", weight=0.2),
)
_NOISE = {"noise_scale": 0.01}
_NTIL_PUBLISHED = (
    _NTIL[0],
    TermSpec(name="relative", weight=0.2, options=_NOISE),
    TermSpec(name="magnitude", weight=0.2, options=_NOISE),
)
_NTIL_SOFT = (
    _NTIL[0],
    TermSpec(name="relative_soft", weight=0.2),
    TermSpec(name="magnitude_soft", weight=0.2),
)
_EMD = (TermSpec(name="emd"),)
_EMD_EXP = (TermSpec(name="emd_exp"),)


_NTL = ("ntl_was", "ntl_was_cdf", "ntl_mse", "ntl_mae", "ntl_huber")


def _ntl(name: str, **options: str) -> ObjectiveSpec:
    return ObjectiveSpec(terms=(TermSpec(name=name, options=options),))


def _ratio(terms: tuple[TermSpec, ...]) -> ObjectiveSpec:
    """Return the settings of CE plus numeric losses, whose sum is scaled to 0.3 times CE."""
    return ObjectiveSpec(terms=terms, balance="ratio")


def _published(terms: tuple[TermSpec, ...]) -> ObjectiveSpec:
    """Return the settings of CE plus numeric losses, averaged per sample and then over samples."""
    return ObjectiveSpec(terms=terms, balance="ratio", reduction="samples", digit_runs=True)


def _in_place_of_ce(name: str, *more: TermSpec) -> ObjectiveSpec:
    """Return the settings of a training loss that replaces CE at the number tokens.

    The loss ``name``, such as ``gce``, replaces it. ``more`` are further numeric losses.
    """
    return ObjectiveSpec(terms=(TermSpec(name=name), *more), weight=1.0, ce_on="text")


PRESETS: Mapping[str, ObjectiveSpec] = {
    "ce": ObjectiveSpec(),
    # control: shows how much runs differ, as Adam hardly notices the scale of a loss
    "ce_times_1.3": ObjectiveSpec(ce_weight=1.3),
    # control: number tokens count twice, whatever their values
    "ce_numbers_times_2": ObjectiveSpec(
        terms=(TermSpec(name="digit_ce", options={"places": "none"}),), weight=1.0
    ),
    "digit_ce": _in_place_of_ce("digit_ce"),
    "gce": _in_place_of_ce("gce"),
    "gce+ntl_was": _in_place_of_ce("gce", TermSpec(name="ntl_was", weight=0.3)),
    **{name: _ntl(name) for name in _NTL},
    # the same for single digits; other tokens differ by their values: up to 999 for 000 to 999
    **{f"{name}_published": _ntl(name, scale="published") for name in _NTL},
    "nl_ntl": _ntl("nl_ntl"),
    "raft": _in_place_of_ce("raft"),
    "rps": _ntl("rps"),  # no published weight was found for rps and smmd
    "smmd": _ntl("smmd"),
    "dist2": ObjectiveSpec(terms=(TermSpec(name="dist2"),), weight=0.1),
    "del": ObjectiveSpec(terms=(TermSpec(name="del"),), weight=0.01),
    "emd": _ratio(_EMD),
    "emd_published": _published(_EMD),
    "emd_exp": _ratio(_EMD_EXP),
    "emd_exp_published": _published(_EMD_EXP),
    "ntil": _ratio(_NTIL),
    "ntil_without_exp": _ratio((*_EMD, *_NTIL[1:])),
    "ntil_without_relative": _ratio((_NTIL[0], _NTIL[2])),
    "ntil_without_magnitude": _ratio(_NTIL[:2]),
    "ntil_soft": ObjectiveSpec(terms=_NTIL_SOFT),
    "ntil_published": _published(_NTIL_PUBLISHED),
    "pathrisk": _ntl("pathrisk"),
    # weights of DETR (arXiv 2005.12872): 5 for the sum of four errors is 20 for their mean, though
    # its coordinates are centre, width and height, and these are corners
    "box_l1": ObjectiveSpec(terms=(TermSpec(name="box_l1"),), weight=20.0),
    "box_giou": ObjectiveSpec(terms=(TermSpec(name="box_giou"),), weight=2.0),
}
