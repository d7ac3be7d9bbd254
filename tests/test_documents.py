"""The pages of the documentation: links, paths, quoted messages, lengths, generated tables."""

import re
import sys
from pathlib import PurePosixPath

import pytest
from documents import PAGES
from import_graph import ROOT, modules

sys.path.append(str(ROOT / "scripts"))
import docs_requests
import docs_tables

PUBLISHED = "docs/results/"
"""Pages of results, which scripts/publish_results.py fills: tables of any length."""


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub and MkDocs make them."""
    prose = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def test_links_have_a_target():
    links = ((p, t) for p, text in PAGES.items() for t in re.findall(r"\]\(([^)\s]+)\)", text))
    for page, target in links:
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), (page, target)
        if anchor:
            name = file.resolve().relative_to(ROOT).as_posix()
            assert anchor in anchors(name), (page, target)


def test_files_that_are_named_exist():
    folders = "tests|scripts|tasks|evaluation|configs|mm_numeric|docs"
    command = r"\./scripts/test |\./|python "
    for page, text in PAGES.items():
        for path in re.findall(rf"`(?:{command})?((?:{folders})/[\w./]+\w)[` ]", text):
            assert (ROOT / path).exists(), (page, path)


def test_pages_are_short():
    most = {"README.md": 120, "docs/extending.md": 270}  # the second has complete files
    for page, text in PAGES.items():
        written, _, rest = text.partition("<!-- generated -->")  # a table for each task or term
        lines = len((written + rest.partition("<!-- end -->")[2]).splitlines())
        assert page.startswith(PUBLISHED) or lines <= most.get(page, 250), page


def test_messages_that_are_quoted_are_in_the_code():
    """Each ``…`` in a quoted message replaces any text."""
    sources = "".join(path.read_text(encoding="utf-8") for path in modules().values())
    texts = re.sub(r"""["']\s+f?["']""", "", sources)  # strings on several lines are one text
    quoted = re.findall(r"^\| `(.+?)` \|", PAGES["docs/faq.md"], re.MULTILINE)
    assert len(quoted) > 50
    missing = [(q, part) for q in quoted for part in q.split("…") if part not in texts]
    assert missing == []


@pytest.mark.slow
def test_generated_tables_are_current():
    for page, text in docs_tables.pages():
        assert page.read_text(encoding="utf-8") == text, "run python scripts/docs_tables.py"


def test_the_readme_has_no_figures_but_those_of_the_claims():
    head, _, rest = PAGES["README.md"].partition("<!-- generated: claims list -->\n")
    listed, _, tail = rest.partition("<!-- end -->")
    result = r"[-+]?\d[\d.,]* ?(?:%|points|times|p \d)|\bp [<\d]"
    assert re.findall(result, head + tail) == []
    sentences = re.findall(r"^- (.+?): .+ to .+, p .+, findable [0-9.]+\.$", listed, re.MULTILINE)
    assert 1 <= len(sentences) == len(listed.split("\n- ")) - 1 <= 5
    for sentence in sentences:
        assert f"| {sentence} |" in PAGES["docs/results/claims.md"]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = {str(PurePosixPath("docs", path)) for path in re.findall(r"[\w/-]+\.md", navigation)}
    pages = {page for page in PAGES if page.startswith("docs/")}
    assert {page for page in pages if not page.startswith(f"{PUBLISHED}")} <= listed <= pages


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://a.b/c.js"></script>', ["https://a.b/c.js"]),
        ('<link rel="stylesheet" href="//a.b/c.css">', ["//a.b/c.css"]),
        ("<style>@import url(https://a.b/c.css);</style>", ["https://a.b/c.css"]),
        ('<a href="https://a.b/">a</a><link rel="canonical" href="https://a.b/">', []),
        ('<img src="images/a.png">', []),
    ],
)
def test_requests_to_other_hosts_are_found(html, found, tmp_path):
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert docs_requests.remote_requests(tmp_path / "page.html") == found
