"""Render the HTML pages from the templates of this folder."""

import functools
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mm_numeric.evaluation.markup import visible


@functools.cache
def _environment() -> Environment:
    """Return the environment of all templates: it escapes every value that is not Markup."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> str:
    """Return a value as it is inserted: a float with two decimals, a text without line breaks."""
    if isinstance(value, Markup):
        return value
    return f"{round(value, 2):g}" if isinstance(value, float) else visible(value)


def render(template: str, **context: object) -> Markup:
    """Render a template."""
    return Markup(_environment().get_template(template).render(**context))


class Tile(NamedTuple):
    """An answer drawn on its image, for the template ``tiles.html``."""

    label: Markup
    drawing: Markup
    words: str
    css: str
