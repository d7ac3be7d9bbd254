"""Keep out words that only this repository used; each has a plain word in the field's language."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from documents import PAGES
from import_graph import ROOT, modules, syntax_tree

BANNED = {
    r"pictures?": "image",
    r"charge[sd]?|charging": "per-token loss, or cost of a wrong class",
    r"chances?": "probability; probs in code",
    r"alphabets?": "digit group: the tokens that compete in one softmax",
    r"doors?": "integration",
    r"lean": "chunked, or fused linear",
    r"on the way|in vain": "during training; patience exhausted",
    r"whose turn": "weighted round robin",
    r"beside": "next to, or as well as",
    r"behind": "after, or next to",
    r"(?:going|way) round": "circular distance",
    r"(?<!there )(?:is|was) none": "is invalid",
    r"as few as|so many": "name the quantity: the same length, n rows",
    r"[Ss]ays? whether|what is said|(?:is|are|was) (?:told|said to)": "return True if; is reported",
    r"stands? (?:nowhere|there|in for|twice|before|after)": "is stored, is missing, is repeated",
    r"goes on from|go on from|going on": "resume",
    r"[Rr]efuse[sd]? (?:a|an|what|settings|names|data)\b": "validate, or reject",
}
"""A regular expression for each banned phrase, and what to write instead."""

NAMES = {
    r"pictures?": "image",
    r"charges?": "loss or cost",
    r"chances?": "probs",
    r"alphabets?": "digit_group",
    r"doors?": "integrations",
    r"lean": "chunked",
    r"beside|behind": "next_to, after",
    r"refuse[sd]?": "validate or reject",
}
"""Words that no identifier may contain, in any spelling, and what to use instead."""

STORED = ("no number behind {END}",)
"""Reasons of parse failures, which results.json contains: they change only with a version."""

DOCUMENTS = [*PAGES, *sorted(f"configs/{p.name}" for p in (ROOT / "configs").glob("*.yaml"))]
SOURCES = modules() | {
    path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob("scripts/**/*.py"))
}

TESTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.glob("tests/**/*.py"))
    if path != Path(__file__)
}

FOREIGN = {"ConnectionRefusedError", "alphabet"}
"""Names of Python, Hypothesis and tokenizers that tests use."""


def prose(path: Path) -> str:
    """Return the comments, docstrings and messages of a Python file, one for each line."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    kinds = (tokenize.COMMENT, tokenize.STRING)
    return "\n".join(" ".join(token.string.split()) for token in tokens if token.type in kinds)


def prose_of_tests(path: Path) -> str:
    """Return the comments, docstrings and names of a test file, without the texts that it tests."""
    tree = syntax_tree(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    docstrings = [" ".join((ast.get_docstring(node) or "").split()) for node in nodes]
    names = [node.name.replace("_", " ") for node in nodes if isinstance(node, ast.FunctionDef)]
    comments = re.findall(r"(?:^|  )# .*", path.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join([*comments, *docstrings, *names])


def words_of(name: str) -> set[str]:
    """Return the words of an identifier in snake case or camel case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def identifiers(path: Path) -> set[str]:
    """Return the names that a file defines or uses."""
    attributes = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.ClassDef: "name",
                  ast.FunctionDef: "name", ast.AsyncFunctionDef: "name"}  # fmt: skip
    return {
        getattr(node, attributes[type(node)])
        for node in ast.walk(syntax_tree(path))
        if type(node) in attributes
    }


def banned_in(text: str) -> list[str]:
    """Return each banned phrase in a text, with the words to use."""
    for reason in STORED:
        text = text.replace(reason, "")
    return [
        f"{found[0]!r} -> {instead}"
        for phrase, instead in BANNED.items()
        for found in re.finditer(rf"\b(?:{phrase})\b", text)
    ]


@pytest.mark.slow
def test_prose_is_plain():
    found = {name: banned_in(prose(path)) for name, path in SOURCES.items()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


@pytest.mark.slow
def test_prose_of_tests_is_plain():
    found = {name: banned_in(prose_of_tests(path)) for name, path in TESTS.items()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_documents_are_plain():
    found = {name: banned_in((ROOT / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def odd_names(path: Path) -> set[str]:
    """Return each name in a file that has a word of ``NAMES``, with the words to use."""
    return {
        f"{identifier} -> {instead}"
        for identifier in identifiers(path)
        for part in words_of(identifier)
        for word, instead in NAMES.items()
        if re.fullmatch(word, part)
    }


def test_names_are_plain():
    found = {name: odd_names(path) for name, path in SOURCES.items()}
    assert {name: odd for name, odd in found.items() if odd} == {}


@pytest.mark.slow
def test_names_in_tests_are_plain():
    found = {
        name: {odd for odd in odd_names(path) if odd.partition(" ")[0] not in FOREIGN}
        for name, path in TESTS.items()
    }
    assert {name: odd for name, odd in found.items() if odd} == {}


def test_a_banned_phrase_is_found():
    text = "Say whether a picture stands nowhere; the charge of a digit, on the way."
    assert len(banned_in(text)) == 5
    assert words_of("LeftOut_ofPictures") == {"left", "out", "of", "pictures"}
