"""The progress of a model that answers: rows and tokens, also within a batch."""

import itertools
import re

import pytest
import torch
import tqdm as tqdm_module
from torch import nn

from mm_numeric.inference.progress import AnswerProgress
from mm_numeric.io import log as log_module


class Counted(nn.Module):
    """A model of which only the output head is run."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 7)

    def get_output_embeddings(self):
        return self.head


def answer(model, rows: int, branches: list[int]) -> None:
    """Run the head on the prompts, and then on the last tokens of branches."""
    model.head(torch.zeros(rows, 9, 4))
    for own in branches:
        model.head(torch.zeros(1, own, 4))


def test_rows_and_tokens_grow_within_a_batch():
    seen = []

    def note(shown):
        seen.append((shown.answered, shown.tokens, shown.bar.n))

    model = Counted()
    with AnswerProgress("answering", 16, 7, note) as shown:
        assert shown.seconds_left() is None
        with shown.batch(model, 8):
            answer(model, 8, [8, 16, 4])
        with shown.batch(model, 8):
            answer(model, 8, [8])
        answer(model, 8, [8])  # outside a batch
    # 8 passes are expected of the first batch (7 tokens and the prompt), 4 of the second one.
    tokens = [(0, 0, 0), (0, 8, 1), (0, 16, 2), (0, 32, 3), (0, 36, 4), (8, 36, 8)]
    assert seen == [*tokens, (8, 36, 8), (8, 44, 9), (8, 52, 11), (16, 52, 16)]
    assert shown.seconds_left() == 0


def test_the_time_left_is_that_of_all_rows_at_the_pace_so_far(monkeypatch):
    now = 100.0
    monkeypatch.setattr("mm_numeric.inference.progress.time.monotonic", lambda: now)
    model = Counted()
    with AnswerProgress("answering", 40, 9) as shown:
        with shown.batch(model, 20):
            answer(model, 20, [20] * 4)  # half of the expected passes, so 10 rows
            now += 30
            assert shown.seconds_left() == pytest.approx(90)
        shown.set_total(20)
        assert shown.seconds_left() == 0


def test_an_error_in_a_batch_counts_no_row_and_leaves_no_hook():
    model = Counted()
    with AnswerProgress("answering", 4, 9) as shown:
        with pytest.raises(KeyError), shown.batch(model, 4):
            raise KeyError
        assert shown.answered == 0
    assert not model.head._forward_hooks


def test_a_pipe_has_lines_within_a_single_batch(monkeypatch, capsys):
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(log_module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(tqdm_module.std, "time", lambda: next(clock))
    model = Counted()
    with AnswerProgress("evaluating", 200, 19) as shown, shown.batch(model, 200):
        answer(model, 200, [200] * 8)
        found = capsys.readouterr().err
    line = r"evaluating: \d+ of 200 rows, [\d,]+ tokens, [\d:]+ so far, [\d:]+ left\n"
    assert len(re.findall(line, found)) > 2
