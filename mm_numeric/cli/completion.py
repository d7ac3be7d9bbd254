"""Shell completion of ``mm-numeric`` with the optional package argcomplete.

pip install 'mm-numeric[completion]'
eval "$(register-python-argcomplete mm-numeric)"
"""

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any


def complete(parser: argparse.ArgumentParser) -> None:
    """If the shell asks for completions, print them and exit; otherwise do nothing."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def complete_with(completer: Callable[..., Iterable[str]], action: argparse.Action) -> None:
    """Set the function that returns the completions of an argument, for argcomplete."""
    action.completer = completer  # type: ignore[attr-defined]


def config_names(prefix: str, **_: Any) -> list[str]:
    """Return the names of the shipped configs, and the YAML files and folders at a path."""
    from argcomplete.completers import FilesCompleter

    from mm_numeric.config.reader import CONFIGS

    names = [path.stem for path in CONFIGS.glob("*.yaml")]
    return [*names, *FilesCompleter(("yaml", "yml"))(prefix)]


def setting_names(**_: Any) -> list[str]:
    """Return the dotted path of each setting of a config."""
    from mm_numeric.config.explain import known_settings

    return list(dict.fromkeys(setting.path for setting in known_settings()))


def overridden_settings(**_: Any) -> list[str]:
    """Return the start of an override for each setting, such as ``trainer.learning_rate=``."""
    return [f"{name}=" for name in setting_names()]
