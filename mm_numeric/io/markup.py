"""Elements of HTML and SVG, whose texts are escaped unless they are ``Markup``."""

from markupsafe import Markup, escape

from mm_numeric.io.escaping import visible

MISSING = "–"  # shown in place of a number that does not exist

_VOID = {"br", "circle", "image", "img", "input", "line", "path", "rect", "use"}


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an HTML or SVG element, such as ``<p class="note">some text</p>``.

    Children are escaped unless they are ``Markup``; attribute values are always escaped. An
    attribute with the value None is omitted. In attribute names, ``_`` becomes ``-``
    (``stroke_width``), and a final ``_`` is removed (``class_``).
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    written = "".join(
        f' {name}="{_attribute(value)}"' for name, value in pairs if value is not None
    )
    if tag in _VOID and not children:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Concatenate HTML (``Markup``) and plain texts, and escape the plain texts."""
    return Markup("").join(c if isinstance(c, Markup) else visible(c) for c in children)


def _attribute(value: object) -> Markup:
    return escape(f"{round(value, 2):g}" if isinstance(value, float) else visible(value))
