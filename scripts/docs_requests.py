"""Fail if a page of a built site would load something from another host.

    python scripts/docs_requests.py site

Links that a reader may follow are allowed; images, scripts, styles, fonts and frames are not.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "modulepreload",
    "manifest",
}
"""Values of ``rel`` for which a browser sends a request."""

_REMOTE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_CSS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class Requests(HTMLParser):
    """Collects the remote addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses of one element."""
        values = {name: value or "" for name, value in attrs}
        loaded = [values.get(name, "") for name in ("src", "poster", "srcset", "data")]
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            loaded.append(values.get("href", ""))
        self.found += [address for address in loaded if _REMOTE.match(address)]
        self.found += _IN_CSS.findall(values.get("style", ""))


def remote_requests(page: Path) -> list[str]:
    """Return the remote addresses that an HTML or CSS file loads."""
    text = page.read_text(encoding="utf-8")
    parser = Requests()
    if page.suffix == ".html":
        parser.feed(text)
        text = "\n".join(re.findall(r"<style.*?</style>", text, re.DOTALL))
    return parser.found + _IN_CSS.findall(text)


def main() -> None:
    """Check every page and style sheet of a folder."""
    site = Path(sys.argv[1])
    files = sorted([*site.rglob("*.html"), *site.rglob("*.css")])
    if not any(file.suffix == ".html" for file in files):
        sys.exit(f"{site}: there are no pages.")
    found = [f"{file}: {address}" for file in files for address in remote_requests(file)]
    if found:
        sys.exit("Pages load files from other hosts:\n" + "\n".join(found))
    print(f"{site}: {len(files)} pages and style sheets load nothing from other hosts")


if __name__ == "__main__":
    main()
