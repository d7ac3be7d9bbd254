"""The size of the repository stays within the budget of CONTRIBUTING.md."""

import pytest
from budget import LONGEST, MEASURES, ROOT, STATIC, WALKS, budget, code_lines, long_functions, walks

BUDGET = budget()


def test_the_table_has_every_measure():
    assert BUDGET.keys() == MEASURES.keys()
    assert all(goal <= most for most, goal in BUDGET.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_the_repository_is_within_its_budget(name):
    """Whoever needs more removes something, or raises the limit in a commit that says why."""
    most, _ = BUDGET[name]
    assert MEASURES[name]() <= most, "python tests/helpers/budget.py prints all figures"


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_a_reader_of_one_row_answer_or_config_opens_few_files(name):
    """A new file that runs for every row needs a reason."""
    files = walks()[WALKS[name]]
    most, _ = BUDGET[name]
    assert len(files) <= most, files
    expected = {"row": "mm_numeric/data/collator.py", "answer": "evaluation/score.py",
                "config": "mm_numeric/config/reader.py"}  # fmt: skip
    assert [own for own in expected.values() if own in files] == [expected[WALKS[name]]]


def test_lines_of_code_are_counted_without_comments_and_docstrings():
    text = '"""A module.\n\nMore.\n"""\n\nx = 1  # one\n# a comment\ny: int\n"""A field."""\n\n'
    text += 'def f(\n    a,\n):\n    """Do it."""\n    return """two\n\nlines"""\n'
    assert sorted(code_lines(text)) == [6, 8, 11, 12, 13, 15, 16, 17]


def test_a_function_is_long_by_its_lines_of_code():
    path = ROOT / "function.py"

    class Text:
        def __init__(self, count):
            body = "".join(f"    x = {i}  # a\n\n    # b\n" for i in range(count))
            self.text = f'@decorated\ndef f():\n    """Do it."""\n{body}'

        def read_text(self, encoding):
            return self.text

        def relative_to(self, root):
            return path.relative_to(root)

    assert long_functions(Text(LONGEST - 1)) == []
    assert long_functions(Text(LONGEST)) == ["function.py:f"]
