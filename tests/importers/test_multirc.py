"""MultiRC: one row per question about a passage."""

import pytest
from importing import json_file, outcome

from mm_numeric.importers.multirc import MultiRCImporter

ANSWERS = [
    {"text": "In 1999", "label": 1},
    {"text": "Never {question}", "label": 0},
    {"text": "5 years ago", "label": 1},
]
PASSAGE = {
    "idx": 3,
    "version": 1.1,
    "passage": {
        "text": "It was 1999.",
        "questions": [
            {"idx": 8, "question": "When was it?", "answers": [{"idx": 0, **a} for a in ANSWERS]},
            {"idx": 9, "question": "Why?", "answers": [{"text": "So", "label": 0}]},
        ],
    },
}
ROW = {"id": "3.0", "passage": "It was 1999.", "question": "When was it?", "answers": ANSWERS}
WRONG = [{"text": "So", "label": 0}]
NONE_RIGHT = {"id": "3.1", "passage": "It was 1999.", "question": "Why?", "answers": WRONG}


def test_a_line_gives_a_row_a_question(tmp_path):
    done = outcome(MultiRCImporter(), json_file(tmp_path / "val.jsonl", [PASSAGE]))
    assert done.bad == []
    assert done.rows == [ROW, NONE_RIGHT]


@pytest.mark.parametrize(
    ("raw", "kind", "why"),
    [
        ({}, "passage", "expected a passage with questions, found None."),
        (
            {"passage": {"text": "", "questions": []}},
            "text",
            "the passage's text must be a non-empty text",
        ),
        ({"passage": {"text": "a", "questions": [7]}}, "question", "expected an object, found 7."),
        (
            {"passage": {"text": "a", "questions": [{"question": "b", "answers": []}]}},
            "answers",
            'no "answers" (a list).',
        ),
        (
            {"passage": {"text": "a", "questions": [{"answers": ANSWERS}]}},
            "text",
            "question must be a non-empty text, not None.",
        ),
    ],
)
def test_a_bad_line_is_listed(tmp_path, raw, kind, why):
    done = outcome(MultiRCImporter(), json_file(tmp_path / "val.jsonl", [raw]))
    assert done.kinds == [kind]
    assert done.why.startswith(why)
