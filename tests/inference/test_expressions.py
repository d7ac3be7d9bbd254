"""Expressions match what Python's re matches, and know what may follow."""

import random
import re

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from walks import EVERY_BYTE, Walks

from mm_numeric.geometry.grammar import escape
from mm_numeric.inference.expressions import MARK, Expressions, parse_regex

ATOMS = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", r"[^\x00-`]", r"\.", "[a-c.-]", "ab"])
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,3}", "{2,3}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from("abcdé.-\n😀"), max_size=7)


def matches(make, expression, text):
    for byte in text.encode():
        expression = make.derivative(expression, byte)
    return expression.ends


@pytest.mark.slow
@given(regex=REGEXES, texts=st.lists(TEXTS, max_size=6))
@examples(400)
def test_expressions_match_what_python_matches(regex, texts):
    make = Expressions(EVERY_BYTE)
    expression = parse_regex(regex, make)
    pattern = re.compile(regex)
    walks, source = Walks(regex), random.Random(0)
    for text in (*texts, *(walks.draw(source, 8) for _ in range(3))):
        assert matches(make, expression, text) == bool(pattern.fullmatch(text)), text
    assert all(pattern.fullmatch(walks.draw(source, 8)) for _ in range(3))


@pytest.mark.parametrize("name", ["<|box_start|>", "<a-b>", "<#1 & ~2>"])
def test_a_token_is_found_by_its_escaped_name(name):
    make = Expressions(EVERY_BYTE | {MARK})
    expression = parse_regex(f"x{escape(name)}y", make, [name])
    for byte in (b"x"[0], MARK, *name[1:].encode(), b"y"[0]):
        expression = make.derivative(expression, byte)
    assert expression.ends


@pytest.mark.slow
@given(regex=REGEXES)
@examples(200)
def test_costs_are_those_of_the_shortest_and_the_longest_text(regex):
    make = Expressions(EVERY_BYTE)
    start = parse_regex(regex, make)
    level, least, most = {start}, None, None
    for length in range(30):
        if any(expression.ends for expression in level):
            least, most = length if least is None else least, length
        level = {after for e in level for _, after in make.successors(e)}
    assert start.least == least
    assert start.most == most or level  # longer than tried


def test_equal_expressions_are_one_object():
    make = Expressions(EVERY_BYTE)
    one = parse_regex("(?:ab|ac)d", make)
    assert parse_regex("(?:ac|ab)d", make) is one
    assert make.derivative(one, ord("a")) is parse_regex("(?:b|c)d", make)
    assert make.derivative(one, ord("b")) is make.nothing


def test_a_list_with_labels_has_few_expressions():
    make = Expressions(EVERY_BYTE)
    start = parse_regex(r"(?:[^;\x00-\x1f]{1,80} )?\[[0-9]{1,3}\](?:; \[[0-9]{1,3}\])*", make)
    seen, todo = {start}, [start]
    while todo:
        new = {after for _, after in make.successors(todo.pop())} - seen
        seen |= new
        todo += new
    assert len(seen) < 1_200  # 80 characters of up to four bytes


def test_names_of_tokens_cost_one_token():
    make = Expressions(frozenset(b"0123456789(),") | {MARK})
    box = parse_regex(r"<\|box_start\|>\([0-9],[0-9]\)<\|box_end\|>", make, ["<|box_start|>"])
    assert box.least == float("inf")  # <|box_end|> would be spelled
    names = ["<|box_start|>", "<|box_end|>"]
    assert parse_regex(r"<\|box_start\|>\([0-9],[0-9]\)<\|box_end\|>", make, names).least == 7
    levels = parse_regex("(?:<loc(?:0[0-9]{3}|10[01][0-9])>){2,3}", make, ["<loc"])
    assert (levels.least, levels.most) == (2, 3)
    assert not matches(make, levels, "<loc0001><loc0002>")
    marked = b"\xffloc0001>\xffloc1002>"
    for byte in marked:
        levels = make.derivative(levels, byte)
    assert levels.ends


def test_bytes_can_be_excluded():
    make = Expressions(EVERY_BYTE, excluded=1 << ord("#"))
    assert parse_regex("(?:a#|b)", make) is parse_regex("b", make)


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("(?=a)b", r"a group other than \(\?:\.\.\.\) at character 0"),
        ("(?P<x>a)", "a group other than"),
        (r"(a)\1", r"the escape \\1 at character 4"),
        ("^a", r"the character \^ at character 0"),
        ("a$", r"the character \$"),
        ("a+?", "a lazy or possessive quantifier"),
        ("(a", r"an unclosed \("),
        ("a)", r"an unmatched \)"),
        ("[a", "an unclosed class"),
        ("[é]", "an unclosed class, or one with a character that is not ASCII"),
        (r"\w", r"the escape \\w"),
        ("*", r"the character \*"),
    ],
)
def test_another_syntax_is_named_with_its_position(regex, found):
    with pytest.raises(ValueError, match=rf"^the grammar of the task has {found}"):
        parse_regex(regex, Expressions(EVERY_BYTE))
