"""Pages in a real browser, where the machine has one."""

import atexit
import functools
import re
import shutil
import subprocess
import tempfile

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars "
    "--enable-logging=stderr --virtual-time-budget=4000 --dump-dom"
)
_TELL = """<script>
  const root = document.documentElement;
  addEventListener("load", () => parent.postMessage([root.clientWidth, root.scrollWidth,
    document.querySelectorAll("svg[role=img]").length, document.styleSheets.length], "*"));
</script>"""
_FRAMES = """<!doctype html><title></title><pre hidden></pre><script>
addEventListener("message", (e) => {
  document.querySelector("pre").append(JSON.stringify(e.data), "\\n");
});
</script><iframe src="copy.html" style="width:1280px;height:900px;border:0"></iframe>
<iframe src="copy.html" style="width:{narrow}px;height:900px;border:0"></iframe>"""


@functools.cache
def _profile():
    """Return the folder of a profile, which Chromium makes at its first start in this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def dumped(url):
    """Return the HTML of a page after its scripts ran for four seconds; skip without a browser.

    Fails if the page logs an error.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no browser found (looked for {', '.join(NAMES)})")
    profile = f"--user-data-dir={_profile()}"
    shown = subprocess.run(
        [browser, *OPTIONS.split(), profile, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in shown.stderr, shown.stderr
    return shown.stdout


def messages_of_frames(page, folder, script, narrow):
    """Show a page on a laptop and on a phone, ``narrow`` pixels wide; return the messages of each.

    ``script`` is appended to the page and calls ``parent.postMessage``; the messages are JSON
    texts. Fails if the page logs an error; skips without a browser.
    """
    copy = page.replace("</body>", f"{script}</body>")
    (folder / "copy.html").write_text(copy, encoding="utf-8")
    frames = _FRAMES.replace("{narrow}", str(narrow))
    (folder / "frames.html").write_text(frames, encoding="utf-8")
    text = dumped((folder / "frames.html").as_uri())
    return re.search("<pre[^>]*>(.*)</pre>", text, re.DOTALL)[1].split("\n")[:-1]


def drawn_in_a_browser(page, folder):
    """Show a page on a laptop and on a phone; return how many images were drawn on each.

    Fails if it logs an error, scrolls sideways or lacks its style; skips without a browser.
    """
    page = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    messages = messages_of_frames(page, folder, _TELL, 420)
    sizes = [tuple(map(int, message.strip("[]").split(","))) for message in messages]
    assert sorted(visible for visible, *_ in sizes) == [420, 1280]
    for visible, needed, _, sheets in sizes:
        assert needed <= visible
        assert sheets == 1
    return [drawn for _, _, drawn, _ in sizes]
