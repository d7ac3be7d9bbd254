"""Text formats of boxes, polygons and points: brackets, JSON, special tokens, location tokens.

A ``CoordinateFormat`` writes boxes, polygons and points with their labels as text, and parses such
shapes in a generated text. Parsing detects a truncated text, takes linear time and raises no error.
If the text has no coordinates, the result is empty.

vLLM, TRL, verl and LLaMA-Factory remove special tokens from answers by default. ``read_answer``
parses such an answer like the original one if the rest is unambiguous:

    <|object_ref_start|>car<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|>  ->  car(1,2),(3,4)
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

_STRING = r"""(?:"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z))"""
"""Pattern of a string of JSON or Python. An unclosed string matches up to the end of the text.

If it did not match, each quote in it would start a new search to the end, in quadratic time.
"""

_JSON_TOKEN = re.compile(rf"([\[{{,:])\s*+({_STRING})?", re.DOTALL)
"""Pattern of a bracket, colon or comma of JSON and the string after it, if any. The ``'s`` in ``The
man's`` is thus not the beginning of a string."""

_ESCAPED_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)

_SPECIAL_TOKEN = re.compile(r"<[^<>\s]+>")  # as in Qwen's <|box_start|> and InternVL's <box>

_NUMBERS = r"[-0-9.,()\s]"  # a character of a list of coordinates

_POINT_SEPARATOR = re.compile(r"\)(\s*,\s*)\(")

_INNER_GROUP = re.compile(r"[\[(]([-0-9.,\s]*+)[\])]")  # as in [(1, 2), (3, 4)]

NUMERAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)")  # .5 is 0.5, not 5
"""Pattern of a coordinate that is written with digits."""


class Piece(NamedTuple):
    """A substring of a written box or polygon: a coordinate, a label or a separator."""

    text: str
    number: int | None = None
    """Index of the numeral within its shape; None if ``text`` is not a numeral."""

    is_label: bool = False
    """True if ``text`` is the label of a shape, with its quotes or tags."""


class ShapeText(NamedTuple):
    """A box, polygon or point found in a text: its coordinates (as strings) and its label."""

    numerals: tuple[str, ...]
    label: str
    span: tuple[int, int]
    """Start and end of the shape without its label, as character indices."""


class Reading(NamedTuple):
    """Boxes, polygons and points parsed from a text, and whether the text is truncated."""

    shapes: tuple[ShapeText, ...]
    """The complete shapes in the text."""

    cut: bool
    """True if the text ends inside a further shape."""

    ambiguous: bool = False
    """True if the special tokens that mark the start and end of shapes and labels are missing."""


@dataclass(frozen=True, kw_only=True)
class CoordinateFormat:
    """A text format of boxes, polygons and points: brackets, separators, special tokens."""

    open: str = ""
    close: str = ""
    """Text before and after the numerals of a box."""

    polygon_open: str | None = None
    polygon_close: str | None = None
    """Text before and after the numerals of a polygon or a point; None: same as for a box."""

    single_open: str | None = None
    """Text before the numerals of a single point; None: same as for a polygon."""

    point_open: str = ""
    point_close: str = ""
    between_numerals: str = ", "
    between_points: str = ", "
    label_open: str = ""
    label_close: str = ""
    label_first: bool = True
    """True if a label is written before its shape, False if after it."""

    before: str = ""
    after: str = ""
    """Text before and after a shape and its label."""

    between: str = "; "
    """Text between two shapes of a list."""

    within: str = ""
    """Text between several shapes of one label in one pair of tags: ``], [`` in ``<box>[[1, 2, 3,
    4], [5, 6, 7, 8]]</box>``. Such answers are parsed, but never written. Empty: not parsed."""

    list_open: str = ""
    list_close: str = ""
    """Text before and after the list of shapes, even if the list has only one shape."""

    quoted: ClassVar[bool] = False
    """True if labels are written as JSON strings."""

    bins: int | None = None
    """Number of location tokens; None if coordinates are written with digits."""

    bin_open: str = ""
    """Text of a location token before its number; after it comes ``>``."""

    bin_digits: int = 1
    """Digits of a location token: smaller numbers have leading zeros, ``<loc0012>``."""

    points: int | None = None
    """Number of points of each shape, if no text encloses its location tokens; None: any number."""

    nothing: str = "none"
    """Text of an answer without shapes."""

    def write(self, shapes: Sequence[tuple[Sequence[str], str, bool]]) -> Iterator[Piece]:
        """Yield the text of boxes, polygons and points in pieces: coordinates, labels, separators.

        ``shapes`` are triples (coordinates, label, is_box). The coordinates are strings, for
        example ``["0.1", "0.5"]`` for a point. A box has two points. The label may be "". Raises
        ValueError for text that would be parsed with another label.
        """
        if not shapes:
            yield Piece(self.nothing)
            return
        if self.shares_labels:
            for (_, before, _), (_, label, _) in pairwise(shapes):
                if before and not label:
                    raise ValueError(
                        "in this coordinate format, a shape without a label would have the label "
                        f"of the shape before it, {before!r}; give it one, or put it first"
                    )
        yield Piece(self.list_open)
        for i, (numerals, label, is_box) in enumerate(shapes):
            yield Piece((self.between if i else "") + self.before)
            if label and self.label_first:
                yield Piece(self._label(label), is_label=True)
            opened, closed = self.enclosing(is_box=is_box, is_point=len(numerals) == 2)
            yield Piece(opened)
            for number, numeral in enumerate(numerals):
                if number % 2:
                    yield Piece(self.between_numerals)
                else:
                    yield Piece((self.between_points if number else "") + self.point_open)
                yield Piece(numeral, number)
                yield Piece(self.point_close if number % 2 else "")
            yield Piece(closed)
            if label and not self.label_first:
                yield Piece(self._label(label), is_label=True)
            yield Piece(self.after)
        yield Piece(self.list_close)

    def enclosing(self, *, is_box: bool, is_point: bool) -> tuple[str, str]:
        """Return the text before and after the numerals of a box, a polygon or a point."""
        if is_box:
            return self.open, self.close
        opened = self.open if self.polygon_open is None else self.polygon_open
        if is_point and self.single_open is not None:
            opened = self.single_open
        return opened, self.close if self.polygon_close is None else self.polygon_close

    @property
    def shares_labels(self) -> bool:
        """Return True if a shape directly after another shape has the same label (Florence-2)."""
        return self.label_first and not (self.between or self.before)

    def bin(self, number: int) -> str:
        """Return a location token: ``<loc0012>`` for 12."""
        return f"{self.bin_open}{number:0{self.bin_digits}d}>"

    def bin_number(self, token: str) -> int:
        """Return the number of a location token: 12 for ``<loc0012>``."""
        return int(token[len(self.bin_open) : -1])

    def _label(self, label: str) -> str:
        written = self.label_open + label + self.label_close
        cut = not self.label_first and self._begun.search(label)  # looks truncated
        if cut or label != self._cleaned(label) or self._shape.search(label):
            raise ValueError(
                f"the label {label!r} contains text of the coordinate format; change one of them"
            )
        return written

    def read(self, text: str, *, points: bool = False) -> Reading:
        """Parse all boxes, polygons and points in a text, and detect an incomplete last shape.

        With ``points``, pairs of numbers in one pair of brackets are separate points, not a
        polygon.
        """
        found = [match for match in self._shape.finditer(text) if match["open"] is not None]
        starts = [*(match.start() for match in found), len(text)]
        ends = [0, *(match.end() for match in found)]
        shapes: list[ShapeText] = []
        for i, match in enumerate(found):
            before, after = text[ends[i] : starts[i]], text[ends[i + 1] : starts[i + 1]]
            label, first = self._read_label(before, after), match.end("open")
            if shapes and self.shares_labels and not before.strip(" \n,;"):
                label = shapes[-1].label
            gaps = self._gaps(match, points=points)
            begins = [match.start(), *(gap_end for _, gap_end in gaps)]
            stops = [*(gap_start for gap_start, _ in gaps), match.end()]
            for span in zip(begins, stops, strict=True):
                numerals = tuple(self._numeral.findall(text[max(span[0], first) : span[1]]))
                shapes.append(ShapeText(numerals, label, span))
        begun = self._begun.search(text, ends[-1])
        rest = text[ends[-1] : begun.start() if begun else None].strip()
        # If shapes follow each other without separator, only a comma can continue a shape.
        continuing = {self.between_points.strip(), "" if self.between else None}
        if not self.close and not self.polygon_close and shapes and rest in continuing:
            # These shapes have no closing text. The last shape is truncated if a number or a comma
            # follows it, or if it has fewer numbers than all other shapes.
            shortest = min((len(shape.numerals) for shape in shapes[:-1]), default=0)
            if begun or rest or len(shapes[-1].numerals) < shortest:
                shapes.pop()
                return Reading(tuple(shapes), True)
        cut = begun is not None
        return Reading(tuple(shapes), cut)

    def _gaps(self, match: re.Match[str], *, points: bool) -> list[tuple[int, int]]:
        """Return the spans of the text between the shapes, if a match has several shapes."""
        first = match.end("open")
        if self.within:
            return [gap.span() for gap in self._gap.finditer(match.string, first, match.end())]
        if not self.open.endswith("["):
            return []
        groups = list(_INNER_GROUP.finditer(match.string, first, match.end()))
        counts = {len(NUMERAL.findall(group[1])) for group in groups}
        if len(groups) < 2 or (min(counts) < 4 and not (points and counts == {2})):
            return []
        return [(a.end(), b.start()) for a, b in pairwise(groups)]

    def is_nothing(self, text: str) -> bool:
        """Return True if a text is ``nothing``, possibly in a code fence or after a label."""
        unfenced = text.strip().removeprefix("```json").removesuffix("```").strip()
        opened, closed = self.label_open.strip(), self.label_close.strip()
        if opened and unfenced.startswith(opened):
            unfenced = unfenced.rpartition(closed)[2].strip()
        return unfenced in (self.nothing, _SPECIAL_TOKEN.sub("", self.nothing).strip())

    def read_answer(self, text: str, *, points: bool = False) -> Reading:
        """Parse the shapes of an answer, even if an inference engine removed its special tokens.

        A group of numbers without its special tokens may be a box, a part of a label, several
        shapes, or the first points of a truncated polygon. ``ambiguous`` is True if a group has
        neither two nor four points (nor one, with ``points``), if its points have different
        separators, or if the last group is shorter than all others. Two errors are not detected. A
        quadrilateral that is truncated after two points looks like a box, if it is the only shape
        or another shape is a box. A polygon that is truncated after four points looks like a
        quadrilateral.
        """
        tokens, plain = self._without_special_tokens
        is_whole = not tokens or any(token in text for token in tokens)
        if self.bins:  # the coordinates themselves are tokens
            reading = self.read(text) if is_whole or not self.open else plain.read(text)
            return reading._replace(ambiguous=self.bin_open not in text)
        if is_whole:
            return self.read(text, points=points)
        reading = plain.read(text, points=points)
        counts = [len(shape.numerals) for shape in reading.shapes]
        is_last_shorter = (
            len(counts) > 1
            and counts[-1] < min(counts[:-1])
            and not (reading.cut or text[reading.shapes[-1].span[1] :].strip())
        )
        groups = (text[slice(*shape.span)] for shape in reading.shapes)
        is_mixed = any(len(set(_POINT_SEPARATOR.findall(group))) > 1 for group in groups)
        known = {2, 4, 8} if points else {4, 8}
        ambiguous = is_last_shorter or is_mixed or not known.issuperset(counts)
        return reading._replace(ambiguous=ambiguous)

    @property
    def is_plain(self) -> bool:
        """Return True if shapes are numbers in brackets, without special tokens or keys."""
        return not re.search(r"\w", f"{self.open}{self.single_open or ''}{self.bin_open}")

    @property
    def special_tokens(self) -> frozenset[str]:
        """Return the tokens that enclose labels and shapes, such as ``<|box_start|>``."""
        return self._without_special_tokens[0]

    @cached_property
    def _without_special_tokens(self) -> tuple[frozenset[str], "CoordinateFormat"]:
        literals = {
            field.name: value
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), str)
        }
        tokens = {token for text in literals.values() for token in _SPECIAL_TOKEN.findall(text)}
        kept = {name: _SPECIAL_TOKEN.sub("", text) for name, text in literals.items()}
        return frozenset(tokens), replace(self, **kept)  # type: ignore[arg-type]

    @property
    def box_pattern(self) -> str:
        """Return a regex of a box as ``write`` writes it, with one group for each coordinate."""
        number = rf"{self.bin_open}(\d+)>" if self.bins else r"([-.\d]+)"
        _, _, *box, _, _ = self.write([(["0"] * 4, "", True)])  # drops before, after etc.
        pieces = (number if piece.number is not None else re.escape(piece.text) for piece in box)
        return "".join(pieces).replace("\\ ", " ")

    @property
    def bin_pattern(self) -> str:
        """Return a regex of a location token."""
        return f"{re.escape(self.bin_open)}[0-9]{{{self.bin_digits},{self._most_digits}}}>"

    @property
    def _most_digits(self) -> int:
        return max(self.bin_digits, len(str((self.bins or 1) - 1)))

    @cached_property
    def _numeral(self) -> re.Pattern[str]:
        return re.compile(self.bin_pattern) if self.bins else NUMERAL

    @cached_property
    def _body(self) -> str:
        found = rf"(?:\s*{self.bin_pattern})+\s*" if self.bins else f"{_NUMBERS}*?"
        return f"{found}(?:{self._gap.pattern}{found})*" if self.within else found

    @cached_property
    def _gap(self) -> re.Pattern[str]:
        """Return a regex for the text between shapes within one pair of tags."""
        return re.compile(self._either(self.within) or "(?!)")

    @cached_property
    def _shape(self) -> re.Pattern[str]:
        """Return a regex that matches one complete box, polygon or point in this text format.

        The group ``open`` is the text before the coordinates. It is None if the match is a polygon
        without its closing text. Otherwise the first tokens of the polygon would match as a box.
        """
        opens = self._either(self.open, self.polygon_open, self.single_open)
        closes = self._either(self.close, self.polygon_close)
        if self.bins and not opens:
            count = f"{{{2 * self.points}}}" if self.points else "+"
            return re.compile(rf"(?P<open>)(?:{self.bin_pattern}\s*){count}")
        if self.bins and not self.open:  # a box is four tokens; only polygons are enclosed by tags
            token = rf"(?:{self.bin_pattern}\s*)"
            return re.compile(
                rf"(?:{opens})\s*{token}++(?!{closes})|(?P<open>(?P<is_polygon>{opens})?)"
                rf"(?(is_polygon){self._body}(?:{closes})|{token}{{4}})"
            )
        if not self.open:  # (x,y),(x,y): points joined by commas, without other text
            point = r"\(\s*-?[0-9.]+\s*,\s*-?[0-9.]+\s*\)"
            return re.compile(rf"(?P<open>){point}(?:\s*,\s*{point})*")
        return re.compile(f"(?P<open>{opens}){self._body}(?:{closes})")

    @cached_property
    def _begun(self) -> re.Pattern[str]:
        """Return a regex for an incomplete box or polygon at the end of a text: ``[1, 2``."""
        opens = self._either(self.open, self.polygon_open, self.single_open)
        if self.bins:
            token = rf"(?:{self.bin_pattern}\s*)"
            starts = [self.bin_open[:end] for end in range(2, len(self.bin_open))]
            begun = "|".join([f"{self.bin_open}[0-9]{{0,{self._most_digits}}}", *starts])
            gap = self._gap.pattern
            found = [rf"(?:{opens})\s*(?:{token}|{gap})*(?:{begun})?$"] if opens else []
            if not self.open:
                most = 2 * (self.points or 2) - 1
                found += [rf"{token}{{1,{most}}}(?:{begun})?$", f"(?:{begun})$"]
            return re.compile("|".join(found))
        if not self.open:
            return re.compile(r"\([-0-9.,\s]*$")
        more = rf"(?:{self._gap.pattern}{_NUMBERS}*+)*+(?:\]\s*,?\s*)?" if self.within else ""
        return re.compile(f"(?:{opens}){_NUMBERS}*+{more}$")

    @staticmethod
    def _either(*literals: str | None) -> str:
        """Return a regex of any of the given strings, with optional spaces between characters."""
        patterns = {
            r"\s*".join(map(re.escape, re.findall(r"\S", text))) for text in literals if text
        }
        return "|".join(sorted(patterns, key=len, reverse=True))

    def _read_label(self, before: str, after: str) -> str:
        return self._cleaned(before if self.label_first else after)

    def _cleaned(self, text: str) -> str:
        opened, closed = self.label_open.strip(), self.label_close.strip()
        if opened and closed and opened in text:  # there may be a sentence around the tags
            text = text.rpartition(opened)[2].partition(closed)[0]
        for literal in (self.label_open, self.label_close, self.list_open, self.list_close):
            if literal.strip():
                text = text.replace(literal.strip(), "")
        text = text.strip()
        for literal in (self.between.strip(), self.before.strip(), self.after.strip()):
            text = text.removeprefix(literal).removesuffix(literal).strip()
        if self.label_first and not self.label_open:  # "[" of [[1, 2, 3, 4], [5, 6, 7, 8]]
            return "" if text == "[" else text.lstrip(",; \n")
        return text


@dataclass(frozen=True, kw_only=True)
class JsonFormat(CoordinateFormat):
    """JSON objects that have numbers with a key such as ``bbox_2d``, and a label.

    Every key that matches ``keys`` is parsed, also in single quotes, as Python prints an object.
    The key determines neither the range of the numbers nor whether x is first.
    """

    quoted: ClassVar[bool] = True

    keys: str = r"(?:bbox|box|bounding_box|points?|poly|polygons?|coordinates?)(?:_2d)?"
    """Regular expression of the keys whose values are coordinates."""

    label_keys: tuple[str, ...] = ("label", "category", "name", "text_content")
    """Keys whose values are labels, in order of priority. The key that the format writes has
    priority over them."""

    def _label(self, label: str) -> str:
        written = json.dumps(label, ensure_ascii=False)[1:-1]
        if self._shape.search(label) or self._begun.search(label):  # 'box': [1, 2]
            written = written.replace("'", "\\u0027")
        return self.label_open + written + self.label_close

    @cached_property
    def _shape(self) -> re.Pattern[str]:
        inner = rf"(?:\[{_NUMBERS}*+\]{_NUMBERS}*+)*+"
        values = rf"(?<=\[){_NUMBERS}*+{inner}\]|(?<=\()[-0-9.,\s]*+\)"  # [1, 2], [[1, 2]], (1, 2)
        return re.compile(rf"(?P<open>{self._key})(?:{values})")

    @cached_property
    def _begun(self) -> re.Pattern[str]:
        return re.compile(rf"{self._key}(?:{_NUMBERS}|[\[\]])*+$")

    @property
    def _key(self) -> str:
        return rf"""(?P<quote>["'])(?P<key>{self.keys})(?P=quote)\s*+:\s*+[\[(]"""

    def _gaps(self, match: re.Match[str], *, points: bool) -> list[tuple[int, int]]:
        is_box = match["key"].startswith("b")
        return super()._gaps(match, points=points and not is_box)

    def _read_label(self, before: str, after: str) -> str:
        fields = _fields(before, {})
        fields = _fields(after, fields, stops=True)
        own = self.label_open.split('"')[1]
        label = next((fields[key] for key in (own, *self.label_keys) if key in fields), '""')
        if label[0] == "'":
            body = _ESCAPED_OR_QUOTE.sub(_in_double_quotes, label[1:-1])
            label = f'"{body}"'
        try:
            return str(json.loads(label, strict=False))
        except ValueError:  # an escape that JSON does not allow
            return ""


def _fields(text: str, fields: dict[str, str], *, stops: bool = False) -> dict[str, str]:
    """Return ``fields`` with the string values of a JSON object added, by key and with quotes.

    At an opening brace, the fields found before it are dropped; with ``stops`` the search ends.
    """
    key = ""
    for sign, string in _JSON_TOKEN.findall(text):
        if sign == "{":
            if stops:
                break
            fields = {}
        if sign == ":" and key and string:
            fields[key] = string
        key = "" if sign == ":" else string[1:-1]
    return fields


def _in_double_quotes(match: re.Match[str]) -> str:
    """Convert an escape or a quote in a single-quoted string for a double-quoted string."""
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])
