"""The result files of other tools, as their code writes them, are read without any preparation."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from result_files import write_lines

from mm_numeric.evaluation.answers.files import read_answer_file
from mm_numeric.evaluation.answers.spreadsheet import read_sheet
from mm_numeric.io.files import UNPACKED_LIMIT

VLMEVALKIT = Path(__file__).parents[2] / "fixtures" / "vlmevalkit.xlsx"
"""Written by the code of VLMEvalKit (``dump`` in vlmeval/smp/file.py) with pandas 3.1.1 and
XlsxWriter 3.3.1, from a table of six rows."""

PREDICTIONS = [
    "[100, 50, 300, 200]",
    "It is at [10, 20, 30, 40].\nSure & <certain>",
    "",
    "42",
    "nowhere \x07 \r\n 你好 é 🕖 _x000D_ \u2028",
    '{"bbox_2d": [0, 0, 64, 48], "label": "a \\"b\\""}',
]

SWIFT = {
    "response": "A",
    "labels": "[1, 2, 3, 4]",
    "logprobs": None,
    "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "A"}],
    "images": [{"bytes": None, "path": "/data/a.jpg"}],
}
FACTORY = {"prompt": "user\n?assistant\n", "predict": "A", "label": "[1, 2, 3, 4]"}
LMMS = {"doc_id": 3, "target": "[]", "filtered_resps": ["A"], "doc_hash": "0f", "input": "?"}
BATCH = {
    "id": "batch_req_1",
    "custom_id": "row-3",
    "response": {"status_code": 200, "body": {"choices": [{"message": {"content": "A"}}]}},
    "error": None,
}
TURNS = [
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]},
    {"role": "tool", "content": "a clock"},
    {"role": "assistant", "content": "A"},
]


def written(folder, *rows):
    return write_lines(folder / "answers.jsonl", rows)


def read(path, **options):
    fields, answers = read_answer_file(path, **options)
    return fields.tool, [(answer.id, answer.text) for answer in answers]


@pytest.mark.parametrize(
    ("row", "tool", "identity"),
    [
        ({"id": "7", "text": "A"}, "mm-numeric", "7"),
        ({"id": 7, "text": "A"}, "mm-numeric", "7"),
        (SWIFT, "ms-swift", None),
        ({**SWIFT, "id": 7}, "ms-swift", "7"),
        (FACTORY, "LLaMA-Factory", None),
        (LMMS, "lmms-eval or lm-eval", 3),
        (
            {**LMMS, "resps": [["A"]], "filtered_resps": ["cut by a filter"]},
            "lmms-eval or lm-eval",
            3,
        ),
        ({"index": 7, "question": "?", "answer": "B", "prediction": "A"}, "VLMEvalKit", "7"),
        (BATCH, "OpenAI batch", "row-3"),
        ({"prompt": "?", "completion": "A", "id": 7}, "TRL", "7"),
        ({"prompt": "?", "completion": TURNS, "id": 7}, "TRL", "7"),
    ],
)
def test_a_tool_is_recognised_by_its_fields(tmp_path, row, tool, identity):
    assert read(written(tmp_path, row)) == (tool, [(identity, "A")])


def test_raw_responses_of_lmms_eval_are_read_where_a_filter_changed_them(tmp_path):
    changed = {**LMMS, "doc_id": 4, "resps": [["raw"]]}
    assert read(written(tmp_path, LMMS, changed))[1] == [(3, "A"), (4, "raw")]


def test_other_fields_can_be_named(tmp_path):
    path = written(tmp_path, {**LMMS, "doc": {"id": 12}, "more": {"said": ["B", "C"]}})
    assert read(path, id_field="doc.id")[1] == [("12", "A")]
    assert read(path, id_field="doc_id")[1] == [("3", "A")]
    assert read(path, text_field="more.said.1", id_field="doc.id")[1] == [("12", "C")]
    path = written(tmp_path, {"index": 5, "text": "of the page", "prediction": "A"})
    assert read(path, text_field="prediction") == ("VLMEvalKit", [("5", "A")])
    path = written(tmp_path, {"id": 5, "text": "of the page", "completion": TURNS})
    with pytest.raises(ValueError, match=r"'text' of mm-numeric and 'completion' of TRL.*--text"):
        read(path)
    assert read(path, text_field="completion") == ("TRL", [("5", "A")])
    assert read(path, text_field="text") == ("mm-numeric", [("5", "of the page")])


@pytest.mark.parametrize("ending", ["xlsx", "tsv", "json", "csv"])
def test_files_of_vlmevalkit_have_the_same_answers_in_each_format(tmp_path, ending):
    path = VLMEVALKIT if ending == "xlsx" else tmp_path / f"model_data.{ending}"
    rows = [{"index": i, "question": "?", "prediction": p} for i, p in enumerate(PREDICTIONS)]
    if ending == "json":
        path.write_text(json.dumps(rows, indent=4, ensure_ascii=False), encoding="utf-8")
    elif ending != "xlsx":
        mark = {"tsv": "\t", "csv": ","}[ending]
        quoted = [[str(cell).replace('"', '""') for cell in row.values()] for row in rows]
        lines = [mark.join(f'"{cell}"' for cell in row) for row in [rows[0], *quoted]]
        path.write_bytes("\n".join(lines).encode() + b"\n")
    texts = [text.replace("\r\n", "\n") for text in PREDICTIONS] if ending[1:] == "sv" else None
    tool, answers = read(path)
    assert tool == "VLMEvalKit"
    assert answers == [(str(i), text) for i, text in enumerate(texts or PREDICTIONS)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "answers.jsonl: no answers to score"),
        (
            [{"id": 1, "said": "A"}],
            "line 1: no known field with the generated text; name it with -",
        ),
        ([{"text": "A", "predict": "B"}], "may be the generated text ('text' of mm-numeric and 'p"),
        ([{"id": 1, "text": "A"}, {"id": 2}], 'line 2: "text" is None, and not one generated text'),
        ([{"id": 1, "text": "A"}, {"id": 2, "text": 7}], 'line 2: "text" is 7, and not one genera'),
        ([{"id": 1, "text": "A"}, {"text": "B"}], 'line 2: the id "id" is None; it must be a text'),
        ([{"id": 1.5, "text": "A"}], 'line 1: the id "id" is 1.5; it must be a text or a whole nu'),
        ([{**LMMS, "doc_id": "x"}], "line 1: \"doc_id\" is 'x', and not a position"),
        ([{"completion": TURNS[1:2] * 2}], 'line 1: "completion" is a list with {'),
        ([{**LMMS, "resps": [["A", "B"]]}], 'line 1: "resps" is 2 texts, and not one generated te'),
    ],
)
def test_an_unknown_or_incomplete_answer_is_one_sentence(tmp_path, rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(written(tmp_path, *rows))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("<f>5</f><v>0</v>", "=5"),  # as XlsxWriter writes the text "=5"
        ("<f> 1/2</f><v></v>", "= 1/2"),  # as openpyxl
        ('<f t="array" ref="E2">5</f><v>0</v>', "{=5}"),
        ("<f>1+6</f><v>7</v>", "7"),  # calculated by Excel
        ("<v>0</v>", "0"),
    ],
)
def test_an_answer_that_became_a_formula_is_its_text(tmp_path, cell, text):
    path = tmp_path / "a.xlsx"
    with zipfile.ZipFile(VLMEVALKIT) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name).decode()
            if name == "xl/worksheets/sheet1.xml":
                content, count = re.subn(r'(<c r="E2") t="s"><v>18</v>', rf"\1>{cell}", content)
                assert count == 1
            new.writestr(name, content)
    (_, row), *_ = read_sheet(path)
    assert list(row.values())[-1] == text


def test_a_file_that_is_not_a_spreadsheet_is_one_sentence(tmp_path):
    path = tmp_path / "a.xlsx"
    with pytest.raises(ValueError, match=r"a\.xlsx: there is no such file"):
        list(read_sheet(path))
    path.write_text("index,prediction\n")
    with pytest.raises(ValueError, match=r"a\.xlsx: not a whole \.zip archive \(File is not a zip"):
        list(read_sheet(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(ValueError, match=r"a\.xlsx: not a spreadsheet that can be read"):
        list(read_sheet(path))


def test_a_spreadsheet_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "a.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b" " * (4 << 20))
    assert path.stat().st_size < 10_000
    with pytest.raises(
        ValueError, match="unpacks to 4 MiB, more than the limit of 1 MiB; if you tr"
    ):
        list(read_sheet(path))


def test_entities_of_a_spreadsheet_are_not_expanded(tmp_path):
    path = tmp_path / "a.xlsx"
    bomb = '<!DOCTYPE a [<!ENTITY b "b"><!ENTITY c "&b;&b;">]><workbook>&c;</workbook>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", bomb)
    with pytest.raises(ValueError, match=r"xl/workbook\.xml: the XML has a document type"):
        list(read_sheet(path))
