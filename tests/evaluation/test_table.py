"""Each format of a table aligns and escapes its own way, and shows the same numbers."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.evaluation.table import Cell, Column, Quantity, Table, TableRow, percent
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element

HOSTILE = "<script>'a' | `b` & [x](http://a.b) *c* _d_ \\e{f} $g^2$ #h ~i 50%\n\x00\u202e\ud800"
FORMATS = ("to_terminal", "to_html", "to_markdown", "to_latex", "to_csv")
GAIN = Quantity(value=5, low=3, high=7, unit="points", sign=True)
SCORES = Table.of(
    [
        "objective",
        Column(header=Cell(content="Acc@0.5"), direction="↑"),
        Column(header=Cell(content="error"), direction="↓"),
    ],
    [
        [Cell(content="ce", is_name=True), Quantity(value=70, low=65, high=75, unit="%"), None],
        [
            Cell(content="emd", is_name=True, note="control"),
            Cell(
                content=Quantity(value=75.04, low=70, high=80, unit="%"),
                best=True,
                change=GAIN,
                trend="better",
            ),
            Quantity(value=-1234.5678, decimals=3),
        ],
    ],
    title="50% & more",
)


def test_a_terminal_shows_aligned_columns():
    lines = SCORES.to_terminal().splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "objective Acc@0.5 ↑ error ↓",
        f"{'-' * 13} {'-' * 50} {'-' * 10}",
        "ce 70.0% (65.0 to 75.0) –",
        "emd (control) 75.0% (70.0 to 80.0); Δ +5.0 points (+3.0 to +7.0) −1,234.568",
    ]
    assert {len(line) for line in lines} == {13 + 2 + 50 + 2 + 10}
    table = Table.of([Column(header=Cell(), align="left", min_width=6), ""], [["a", "1"]])
    assert table.to_terminal(header=False, indent=2) == "  a       1"


def test_markdown():
    assert SCORES.to_markdown().splitlines() == [
        "*50% &amp; more*",
        "",
        "| objective | Acc@0.5 ↑ | error ↓ |",
        "| --- | ---: | ---: |",
        "| `ce` | 70.0% (65.0 to 75.0) | – |",
        "| `emd` (control) | **75.0%** (70.0 to 80.0); Δ +5.0 points (+3.0 to +7.0) | −1,234.568 |",
    ]


def test_html():
    page = SCORES.to_html()
    assert '"0"><table><caption>50% &amp; more</caption><thead>' in page
    assert '<th scope="col">Acc@0.5 ↑</th>' in page
    first = '<th scope="row"><span class="name">ce</span></th><td>70.0%<small>65.0 to 75.0</small>'
    assert first in page
    assert (
        '<td><span class="best">75.0%</span><small>70.0 to 80.0</small><small class="better">'
        "Δ +5.0 points<br/>+3.0 to +7.0</small></td>"
    ) in page
    symbol = element("svg", width=16)
    named = Cell(content="ce", is_name=True, symbol=symbol).to_html()
    expected = '<span class="who"><svg width="16"></svg><span class="name">ce</span></span>'
    assert named == expected
    bar = Cell(content=percent(0.5), bar=(36, "red"), css="share").to_html()
    assert bar.startswith('<span class="share">50.0%</span><span class="bar" style="width:36.0px')


def test_latex_uses_booktabs():
    assert Table.of(["a"], [["[2em]"], ["*"]]).to_latex().splitlines()[4:6] == [
        r"{[}2em] \\",
        r"{*} \\",
    ]
    lines = SCORES.to_latex().splitlines()
    assert lines[:4] == [
        r"% 50\% \& more",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"objective & Acc@0.5 $\uparrow$ & error $\downarrow$ \\",
    ]
    assert lines[-3].startswith(r"\texttt{emd} (control) & \begin{tabular}[t]{@{}r@{}}\textbf{75.0")
    assert r"\\ \scriptsize $\Delta$ +5.0 points \\ \scriptsize +3.0 to +7.0\end{tab" in lines[-3]
    assert lines[-3].endswith(r"& $-$1,234.568 \\")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_csv_has_unrounded_numbers_and_intervals_in_columns():
    assert list(csv.reader(io.StringIO(SCORES.to_csv()))) == [
        ["objective", "Acc@0.5 (%)", "Acc@0.5 low", "Acc@0.5 high", "Acc@0.5 difference",
         "Acc@0.5 difference low", "Acc@0.5 difference high", "error"],
        ["ce", "70", "65", "75", "", "", "", ""],
        ["emd", "75.04", "70", "80", "5", "3", "7", "-1234.5678"],
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["", "separated", "aside"])
def test_rows_of_each_kind(kind):
    table = Table.of(["a"], [TableRow(cells=[Cell(content="x")], kind=kind)])
    assert ('<tr class="apart">' in table.to_html()) == (kind == "separated")
    assert ('<tr class="aside">' in table.to_html()) == (kind == "aside")
    assert table.to_latex().count("\\midrule") == (2 if kind == "separated" else 1)


@pytest.mark.parametrize("is_name", [False, True])
def test_hostile_cells_stay_cells(is_name):
    hostile = Cell(content=HOSTILE, is_name=is_name)
    table = Table.of([hostile, "b"], [[hostile, hostile], [hostile, "1"]], title=HOSTILE)
    for name in FORMATS:
        text = str(getattr(table, name)())
        assert not re.search("[\x00\u202e\ud800]", text), name
        text.encode("utf-8")
    page = table.to_html()
    assert "<script" not in page
    assert page.count("<tr>") == 3
    title, empty, *twin = table.to_markdown().splitlines()
    assert title.startswith("*")
    assert empty == ""
    assert len(twin) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in twin} == {3}
    assert is_name or "<script" not in table.to_markdown()
    latex = table.to_latex().splitlines()
    assert len(latex) == 9
    assert {len(re.findall(r"(?<!\\)&", line)) for line in latex[3:4] + latex[5:7]} == {1}
    assert not re.search(r"(?<!\\)[#_%]", "".join(latex[3:7]))
    assert [len(row) for row in csv.reader(io.StringIO(table.to_csv()))] == [2, 2, 2]


@given(text=st.text(alphabet="=+-@a1 \t\n\r", max_size=5))
def test_a_spreadsheet_reads_no_text_as_a_formula(text):
    rows = list(csv.reader(io.StringIO(Table.of(["h"], [[f"x{text}"], [text]]).to_csv())))
    assert all(row[0][:1] not in set("=+-@\t\r") for row in rows if row)
    assert rows[1] == [plain(f"x{text}")]


def test_a_long_text_is_shortened():
    assert Cell(content="a" * 50, limit=10).to_markdown() == "a" * 9 + "…"
    assert percent(None) is None


def test_elements_escape_their_attributes():
    found = element("rect", x=1.23456, stroke_width=2, class_='"><b>', title=None)
    assert found == '<rect x="1.23" stroke-width="2" class="&#34;&gt;&lt;b&gt;"/>'
    assert element("text", "<a>", element("b", "c")) == "<text>&lt;a&gt;<b>c</b></text>"


def test_numbers_of_one_column_are_aligned_by_their_decimal_point():
    """A cell is followed by a space as wide as what the longest number has after its point."""
    own = [Quantity(value=3, decimals=3), Quantity(value=12, decimals=1), None]
    page = Table.of(["metric", "value"], [["a", own[0]], ["b", own[1]], ["c", own[2]]]).to_html()
    assert re.findall('class="pad" style="width:(.*?)em"', page) == ["1.11"]  # two digits
    alike = Table.of(["metric", "value"], [["a", own[0]], ["b", own[0]]]).to_html()
    assert "pad" not in alike
