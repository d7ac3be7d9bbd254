"""Questions in words are checked as those about places in images are."""

import pytest
from rows_of_tasks import written_rows
from tiny_models import CACHE

from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "task", "ceiling"),
    [
        ("qwen2_vl", "mathvista", "strict 100.00 %, by rules 100.00 %"),
        ("causal_lm", "gsm8k", "accuracy 100.00 %"),
        ("t5", "{name: gsm8k, plain: true}", "accuracy 100.00 %"),
        ("causal_lm", "multirc", "F1 of words 100.00 %"),
        ("t5", "{name: multirc, answer: yes_no}", "F1a 100.00 %"),
    ],
)
def test_good_rows_are_ready(tmp_path, family, task, ceiling):
    config = [f"task={task}", f"model={{family: {family}, name: tiny, dtype: float32}}"]
    name = read_config("gsm8k_qwen2_5_7b", config).task_name
    train, test = (written_rows(name, tmp_path, count) for count in (8, 4))
    config += [
        f"data={{train: {{path: {train}}}, test: {{path: {test}}}, cache: {CACHE}}}",
        f"trainer={{output_dir: {tmp_path / 'run'}, max_steps: 1}}",
    ]
    text = report_text(check_data(read_config("gsm8k_qwen2_5_7b", config)))
    assert text.splitlines()[-1] == "ready", text
    assert ceiling in text
    assert "in no marked number" not in text  # objective.numbers is all
