"""``mm-numeric check``: validate a config and print it, or explain a setting."""

import argparse

import yaml

from mm_numeric.comparison.rows import compared_rows, read_comparison
from mm_numeric.config.schema import Config
from mm_numeric.config.trainer_settings import BY_MACHINE, step_notes, trainer_defaults
from mm_numeric.io.log import show
from mm_numeric.losses.presets import PRESETS


def check(arguments: argparse.Namespace) -> None:
    """Print the validated config with all defaults or, with ``--explain``, explain a setting."""
    if arguments.explain:
        if arguments.config:
            raise ValueError(f"--explain needs no config; remove {arguments.config}.")
        from mm_numeric.config.explain import explain

        show(explain(arguments.explain))
        return
    if not arguments.config:
        raise ValueError("name a config, or a setting with --explain.")
    config = read_comparison(arguments.config, arguments.overrides)
    rows = compared_rows(config) if config.compare else ()
    for each in (config, *(row.config for row in rows)):
        _check_names(each, arguments.config)
    show(config.to_yaml(), end="")
    texts = dict.fromkeys(n for each in (config, *(r.config for r in rows)) for n in _notes(each))
    show("".join(f"# Note: {text}\n" for text in texts), end="")
    defaults = {"trainer": trainer_defaults(config.trainer)}
    text = yaml.safe_dump(defaults, sort_keys=True, width=100)
    show("\n# Defaults of transformers.TrainingArguments for the rest of `trainer`:")
    show("\n".join(f"# {line}" for line in text.splitlines()))
    show(f"# Chosen by the machine: {', '.join(BY_MACHINE)}.")


def _notes(config: Config) -> list[str]:
    warm_start = config.compare.warm_start if config.compare else None
    every = config.evaluate.every_steps if config.evaluate else None
    others = [
        text.replace("trainer.", "compare.warm_start.") for text in step_notes(warm_start or {})
    ]
    return step_notes(config.trainer, every) + others


def _check_names(config: Config, where: str) -> None:
    """Import the objects that a config names by an import path, and check options of loss terms.

    Terms of presets and families of this library are known to be correct. They are not imported,
    because importing torch and transformers takes seconds.
    """
    shipped = [(term.name, term.options) for spec in PRESETS.values() for term in spec.terms]
    for term in config.objective.spec.terms:
        if (":" in term.name or term.options) and (term.name, term.options) not in shipped:
            from mm_numeric.losses.term import make_term

            make_term(term.name, term.options, f"{where}, objective")
    if ":" in config.model.family:
        from mm_numeric.models.loading import family_class

        family_class(config)
    if config.predict.risk is not None:
        from mm_numeric.inference.risks import find_risk

        find_risk(config.predict.risk, f"{where}, predict.decode.for")
