"""YAML without surprises: every wrong value is answered with place, value and what to write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.settings import parse_yaml, read_dataclass, read_value, read_yaml, with_override


@dataclass(frozen=True, kw_only=True)
class Wheel:
    size_px: int = 3

    def __post_init__(self):
        if self.size_px < 1:
            raise ValueError("size_px must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class Car:
    name: str
    weight: float = 1.0
    open: bool = False
    seats: int | None = None
    wheels: tuple[Wheel, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    anything: Any = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    cost: str | Sequence[Sequence[float]] = "absolute"


def test_a_name_or_a_list_of_lists():
    def read(text):
        return read_dataclass(Costs, parse_yaml(text, "x"), "x").cost

    assert read("{cost: log}") == "log"
    assert read("{cost: [[0, 1], [2.5, 0]]}") == ((0.0, 1.0), (2.5, 0.0))
    for text, message in [
        ("{cost: 3}", r"^x\.cost: 3 is not a list; write \[a, b\]\.$"),
        ("{cost: [0, 1]}", r"^x\.cost\.0: 0 is not a list; write \[a, b\]\.$"),
        ("{cost: [[0, a], [1, 0]]}", r"^x\.cost\.0\.1: 'a' is not a number\.$"),
        ("{cost: [[0, 1], [1e-1, 0]]}", r"^x\.cost\.1\.0: '1e-1' .* write 0\.1\.$"),
        ("{cost: [[0, .nan], [1, 0]]}", r"^x\.cost\.0\.1: nan is not a number\.$"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(text)


def car(text):
    return read_dataclass(Car, parse_yaml(text, "car.yaml"), "car.yaml, car")


def test_every_setting_arrives_in_its_type():
    read = car(
        "{name: a, weight: 2, open: on, seats: null, wheels: [{size_px: 4}, {}], options: {a: 1}}"
    )
    wheels = (Wheel(size_px=4), Wheel())
    assert read == Car(name="a", weight=2.0, open=True, wheels=wheels, options={"a": 1})
    assert type(read.weight) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: a, wieght: 1}", r"car: there is no setting 'wieght'\. Did you mean 'weight'\?"),
        ("{name: a, zzz: 1}", r"no setting 'zzz'\. Known: anything, name, open, options"),
        ("{name: a, on: 1}", r"there is no setting True\. Known:"),
        ("{weight: 1}", r"car: the setting 'name' is missing\."),
        ("7", r"car: expected settings \(name, weight, open, .*\), found 7\."),
        ("{name: a, weight: 1e-5}", r"car\.weight: '1e-5' is not a number\. .* write 1\.0e-5\."),
        ("{name: a, weight: 1.25e5}", r"YAML reads 1\.25e5 as text: write 125000\.0\."),
        ("{name: a, weight: 1.2345e30}", r"write 1\.2345e\+30\."),
        ("{name: a, weight: '3'}", r"'3' is not a number\. .* write 3\.0\."),
        ("{name: a, weight: heavy}", r"car\.weight: 'heavy' is not a number\.$"),
        ("{name: a, weight: inf}", r"'inf' is not a number\.$"),
        ("{name: a, weight: .nan}", r"nan is not a number\.$"),
        (
            f"{{name: a, weight: {'9' * 400}}}",
            r"car\.weight: 9{20}\.\.\. is larger than any float\.$",
        ),
        ("{name: a, weight: true}", r"True is not a number\.$"),
        ("{name: a, seats: 1e6}", r"'1e6' is not a whole number\. .* write 1000000\."),
        ("{name: a, seats: '1234567'}", r"write 1234567\."),
        ("{name: a, seats: '1.5'}", r"'1\.5' is not a whole number\.$"),
        ("{name: a, seats: 2.0}", r"car\.seats: 2\.0 is not a whole number\.$"),
        ("{name: a, seats: true}", r"car\.seats: True is not a whole number\.$"),
        ("{name: a, open: 1}", r"car\.open: 1 is not true or false\.$"),
        ("{name: a, open: 'yes'}", r"car\.open: 'yes' is not true or false\.$"),
        ("{name: 12:30}", r"car\.name: 750 is not text\. YAML reads 12:30, .* use quotes\."),
        ("{name: on}", r"car\.name: True is not text\. .* use quotes\."),
        ("{name: }", r"car\.name: None is not text\.$"),
        ("{name: [a]}", r"car\.name: \['a'\] is not text\.$"),
        ("{name: a, wheels: 3}", r"car\.wheels: 3 is not a list; write \[a, b\]\."),
        ("{name: a, wheels: [{}, {size: 3}]}", r"car\.wheels\.1: there is no setting 'size'"),
        ("{name: a, wheels: [{size_px: x}]}", r"car\.wheels\.0\.size_px: 'x' is not a whole"),
        ("{name: a, wheels: [{size_px: 0}]}", r"car\.wheels\.0: size_px must be at least 1\.$"),
        ("{name: a, options: 3}", r"car\.options: expected settings as `key: value`, found 3\."),
    ],
)
def test_a_wrong_setting_is_one_sentence(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        car(text)
    assert str(caught.value).startswith("car.yaml, car")
    assert "\n" not in str(caught.value)


@given(
    number=st.floats(allow_nan=False, allow_infinity=False),
    way=st.sampled_from([repr, "{:e}".format, "{:g}".format]),
)
@examples(300)
def test_what_the_sentence_says_to_write_is_that_number(number, way):
    written = way(number)
    value = parse_yaml(written, "x")
    if isinstance(value, str):
        with pytest.raises(ValueError, match="write ") as caught:
            read_value(float, value, "x")
        value = parse_yaml(str(caught.value).rpartition("write ")[2].removesuffix("."), "x")
    assert type(value) in (int, float)
    assert value == float(written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"^mine\.yaml, line 3: the key 'a' appears twice\.$"),
        ("a:\n  b: {c: 1, c: 1}", r"^mine\.yaml, line 2: the key 'c' appears twice\.$"),
        ("a: [1", r"^mine\.yaml, line 1: expected ',' or '\]'"),
        ("\n\n\ta: 1", r"^mine\.yaml, line 3: found character '\\t'"),
        ("? [a, b]\n: 1", r"^mine\.yaml, line 1: found unhashable key\.$"),
        ("a: 2020-13-45", r"^mine\.yaml: not YAML \(month must be in 1\.\.12\)\.$"),
        ("a: \x07", r"^mine\.yaml: not YAML \(unacceptable character #x0007"),
        ("a: !!python/name:os.system", r"^mine\.yaml, line 1: could not determine a constructor"),
    ],
)
def test_what_is_not_yaml_is_answered_with_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        parse_yaml(text, "mine.yaml")


def test_a_merge_adds_the_settings_of_another_section():
    text = """
        base: &base {seed: 1, steps: 2}
        own: {inner: &inner {<<: *base, steps: 3}}
        both: {<<: [*inner, *base], seed: 4}
        """
    assert parse_yaml(text, "x") == {
        "base": {"seed": 1, "steps": 2},
        "own": {"inner": {"seed": 1, "steps": 3}},
        "both": {"seed": 4, "steps": 3},
    }
    with pytest.raises(ValueError, match=r"^x, line 3: the key 'seed' appears twice\.$"):
        parse_yaml("a: &a {b: 1}\nc:\n  {<<: *a, seed: 1, seed: 2}", "x")


def test_read_yaml_says_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml: cannot be read \("):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        read_yaml(tmp_path)
    path = tmp_path / "mine.yaml"
    for data, message in [
        (b"- 1\n", r"mine\.yaml: expected settings as `key: value`, found \[1\]\."),
        (b"", r"mine\.yaml: expected settings as `key: value`, found an empty file\."),
        (b"a: \xff", r"mine\.yaml: not UTF-8 \(byte 0xff"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            read_yaml(path)
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    assert read_yaml(path) == {"a": 1}


RAW = {"task": "clock", "objective": "ntil", "data": {"seeds": [0, 1]}, "compare": None}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.rows=3", {**RAW, "data": {"seeds": [0, 1], "rows": 3}}),
        ("data.seeds.1=7", {**RAW, "data": {"seeds": [0, 7]}}),
        ("data.seeds=[5]", {**RAW, "data": {"seeds": [5]}}),
        ("objective=emd", {**RAW, "objective": "emd"}),
        (
            "objective.numeric_weight=0.8",
            {**RAW, "objective": {"preset": "ntil", "numeric_weight": 0.8}},
        ),
        ("task.prompt=a=b", {**RAW, "task": {"name": "clock", "prompt": "a=b"}}),
        ("compare.jobs=2", {**RAW, "compare": {"jobs": 2}}),
        ("data.cache=", {**RAW, "data": {"seeds": [0, 1], "cache": None}}),
        ("data.cache={a: {b: 1}}", {**RAW, "data": {"seeds": [0, 1], "cache": {"a": {"b": 1}}}}),
    ],
)
def test_an_override_changes_one_setting_of_a_copy(override, expected):
    before = repr(RAW)
    assert with_override(RAW, override) == expected
    assert repr(RAW) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.rows", r"^data\.rows: write an override as name\.of\.setting=value\.$"),
        ("=3", r"^=3: write an override as"),
        ("data.seeds.2=7", r"data\.seeds has no setting '2'; it is \[0, 1\]\."),
        ("data.seeds.-1=7", r"data\.seeds has no setting '-1'"),
        ("data.seeds.²=7", r"data\.seeds has no setting '²'"),
        ("data.seeds.0.a=7", r"data\.seeds\.0 has no setting 'a'; it is 0\."),
        ("objective.preset.x=7", r"objective\.preset has no setting 'x'; it is 'ntil'\."),
        ("data.rows=[", r"^data\.rows=\[, line 1: "),
        ("data={a: 1, a: 2}", r"the key 'a' appears twice"),
    ],
)
def test_an_override_that_leads_nowhere(override, message):
    with pytest.raises(ValueError, match=message):
        with_override(RAW, override)


KEYS = st.text("abc", min_size=1, max_size=3)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)


@given(path=st.lists(KEYS, min_size=1, max_size=4), value=PLAIN | st.lists(PLAIN, max_size=3))
@examples(200)
def test_an_override_sets_what_yaml_can_say(path, value):
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n")
    found = with_override({}, f"{'.'.join(path)}={text}")
    for key in path:
        assert list(found) == [key]
        found = found[key]
    assert found == value
    assert type(found) is type(value)
