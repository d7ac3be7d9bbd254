"""The file of each task begins with a row, its prompt and its text, which are those of the task."""

import json
import re
from importlib import import_module

import pytest

from mm_numeric.answers import IMAGE
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.registry import TASKS
from mm_numeric.tasks.base import task_class

OF_MODULE = {"number_questions": "numbers", "pointing": "pointing"}
MODULES = sorted({path.partition(":")[0] for path in TASKS.values()})


@pytest.mark.parametrize("module", MODULES)
def test_a_task_begins_with_a_row_and_the_text_that_it_becomes(module):
    own = module.rpartition(".")[2]
    task = task_class(OF_MODULE.get(own, own), "test")()
    docs = import_module(module).__doc__
    row, prompt, text = (
        " ".join(re.search(rf"^{label} +(.*(?:\n {{9}}.*)*)", docs, re.M)[1].split())
        for label in ("Example", "Prompt", "Text")
    )
    example, *_ = task.examples([("line 1", json.loads(row))], training=True)
    assert prompt == example.prompt.replace(IMAGE, "<image>").replace("\n", "\\n")
    frame = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen2_5_vl"])
    assert text == task.format(example.answer, frame).text.replace("\n", "\\n")
