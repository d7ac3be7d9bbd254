"""Hooks of MkDocs, which mkdocs.yml names."""

from typing import Any


def on_post_page(output: str, **_: Any) -> str:
    """Label the search dialog for screen readers, because the theme does not."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for 404.html."""
    return on_post_page(output_content)
