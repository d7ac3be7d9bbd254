"""MeasureBench: its rule next to a slow reference, units and times, and its files as rows."""

import json
import random
import re
import time
import unicodedata

import pytest
from importing import outcome

from mm_numeric.answers import Interval, Measurement
from mm_numeric.evaluation.metrics.measurement import MEASUREMENTS, score_texts, unit_key
from mm_numeric.evaluation.score import score
from mm_numeric.importers.measurebench import MeasureBench
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.measurement import ReadInstrument

TASK = ReadInstrument()
AMMETER = {"question_id": "ammeter_0", "question": "What is the reading of the instrument?",
           "img_path": "img/ammeter_0.jpg", "image_type": "Ammeter", "design": "Dial",
           "evaluator": "interval_matching",
           "evaluator_kwargs": {"interval": [9.5, 9.7], "units": ["A", "Ampere"]}}  # fmt: skip
CLOCK = {**AMMETER, "question_id": "clock_2", "image_type": "Clock",
         "evaluator": "multi_interval_matching",
         "evaluator_kwargs": json.dumps({"intervals": [["08:59:06", "08:59:07"],
                                                       ["20:59:06", "20:59:07"]],
                                         "units": [[], []]})}  # fmt: skip


def official_numbers(text):
    """extract_numbers of measure_bench_evaluator.py, with its own patterns one after the other."""
    found, at = [], 0
    sign = r"[+\-\\u2212]?"  # a backslash, u, 2 and 1 are in the class, too
    patterns = (r"[+\-\u2212]?\d+\s*[/]\s*[+\-\u2212]?\d+", sign + r"(?:\d*\.\d+|\d+\.\d*)",
                sign + r"\d+")  # fmt: skip
    while at < len(text):
        match = next((m for p in patterns if (m := re.compile(p).match(text, at))), None)
        if match is None:
            at += 1
            continue
        at = match.end()
        above, _, below = match[0].strip().partition("/")
        try:
            if not below:
                found.append(float(above))
            elif int(below):
                found.append(int(above) / int(below))
        except ValueError:
            continue
    return found


def official_seconds(parts):
    return sum(scale * int(p) for scale, p in zip([3600, 60, 1], parts, strict=False) if p)


def official_interval(text, interval, units):
    """_interval_matching for the text after normalize_string and extract_answer."""
    result = {"all": 0, "number": 0, "error": None, "unit": 0 if len(units) else None}
    lower = unicodedata.normalize("NFKC", text.lower()).replace("µ", "μ")
    for unit in units:
        if unicodedata.normalize("NFKC", unit.lower()).replace("µ", "μ") in lower:
            result["unit"] = 1
    if isinstance(interval[0], str):
        low, high = (official_seconds(end.split(":")) for end in interval)
        times = re.findall(r"\b(\d{1,2}):(\d{2})(?::(\d{2}))?\b", text)
        if not times:
            return result
        answer = official_seconds(times[0])
    else:
        (low, high), numbers = interval, official_numbers(text)
        if not numbers or numbers[-1] in (float("inf"), float("-inf")):
            return result
        answer = numbers[-1]
    if answer < low or answer > high:
        result["error"] = min(abs((answer - end) / (end + 1e-6)) for end in (low, high))
        return result
    result.update(number=1, error=0, all=int(result["unit"] in (None, 1)))
    return result


def official(text, evaluator, kwargs):
    """get_score: extract the answer, and judge it by one interval, or by the best of several."""
    for marker in ("Answer:", "Answer", "答案：", "答案:", "答案"):
        if marker in text:
            text = text.split(marker)[-1].strip()
            break
    else:
        boxed = re.search(r"\\boxed\{([^}]+)\}", text)
        text = boxed[1].strip() if boxed else text
    for old, new in {"′": "'", "\u00a0": " ", "‐": "-", "−": "-", "–": "-", "⋅": "·"}.items():
        text = text.replace(old, new)
    if evaluator == "interval_matching":
        return official_interval(text, kwargs["interval"], kwargs["units"])
    units, best = kwargs["units"] or [[]] * len(kwargs["intervals"]), None
    for interval, own in zip(kwargs["intervals"], units, strict=False):
        result = official_interval(text, interval, own)
        if result["all"]:
            return result

        def points(one):
            return one["number"] + (1 if one["unit"] is None else one["unit"])

        nearer = best and None not in (result["error"], best["error"])
        if (
            best is None
            or points(result) > points(best)
            or (nearer and result["error"] < best["error"])
        ):
            best = result
    return best


PARTS = ["9.6", "9,6", "1,250", "1/2", "-3 / 4", "5/0", "12:04", "8:59:06", "20:59:07", "7:5", ".5",
         "2.", "u5", "\\5", "１２", "−30", "–2", "A", "mA", "amperes", "mL", "ml", "µm", "μM",
         "°C", "℃", "N⋅m", "N·m", "psi", "PSI", " ", " ", "\u00a0", "\n", "Answer:", "答案：",
         "Final Answer:", "\\boxed{", "}", "The reading is", "1e3", "9" * 400, "", ".", "25 %",
         "m³"]  # fmt: skip
TARGETS = [
    ("interval_matching", {"interval": [9.5, 9.7], "units": ["A", "Ampere"]}),
    ("interval_matching", {"interval": [-30, 250], "units": []}),
    ("interval_matching", {"interval": [0.5, 0.5], "units": ["mL", "µM"]}),
    ("interval_matching", {"interval": ["11:10:00", "12:05:00"], "units": ["hours", "h"]}),
    ("interval_matching", {"interval": [2, 12], "units": ["N·m", "m3"]}),
    ("interval_matching", {"interval": [0, 30], "units": [""]}),
    ("multi_interval_matching", {"intervals": [[4.9, 5.1], [49, 51]], "units": [["cm"], ["mm"]]}),
    ("multi_interval_matching", {"intervals": [[0, 1], [9, 10]], "units": [["°C"], ["°F", "A"]]}),
    ("multi_interval_matching", {"intervals": [[-1, 0], [2, 12]], "units": []}),
    ("multi_interval_matching", {"intervals": [["12:04", "12:05"], ["00:04", "00:05"]],
                                 "units": ["", ""]}),
    ("multi_interval_matching", {"intervals": [["08:59:06", "08:59:07"], ["20:59:06", "20:59:07"]],
                                 "units": [""]}),  # the second is never judged
    ("multi_interval_matching", {"intervals": [[5, 12], [0.1, 0.6]], "units": ["psi", "m"]}),
]  # fmt: skip


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """The targets, imported from a file of MeasureBench."""
    file = tmp_path_factory.mktemp("measurebench") / "real.json"
    rows = [{**AMMETER, "question_id": f"{i}", "evaluator": evaluator, "evaluator_kwargs": kwargs}
            for i, (evaluator, kwargs) in enumerate(TARGETS)]  # fmt: skip
    file.write_text(json.dumps(rows), encoding="utf-8")
    found = outcome(MeasureBench(), file)
    assert found.bad == []
    return [e.answer for e in TASK.examples([("x", row) for row in found.rows], training=False)]


def test_the_metric_is_that_of_measurebenchs_script(targets):
    rng = random.Random(3)
    texts = ["".join(rng.choices(PARTS, k=rng.randint(1, 6))) for _ in range(250)]
    texts += ["9.6 mA", "Final Answer: 9.6 amp", "1,250 A", "11:30", "11:30 h", "20:59:06", "0:04",
              "5 cm", "50 mm", "5 mm", "9.5 °f", "0.3 psi", "\\boxed{5.0 CM}."]  # fmt: skip
    right = 0
    for target, (evaluator, kwargs) in zip(targets, TARGETS, strict=True):
        recorded = TASK.recorded(json.loads(json.dumps(TASK.record(target))))
        columns = score_texts(texts, [recorded] * len(texts))
        for i, text in enumerate(texts):
            wanted = official(text, evaluator, kwargs)
            found = {name: values[i] for name, values in columns.items()}
            assert found == {
                "measurebench": wanted["all"],
                "measurebench_number": wanted["number"],
                "measurebench_unit": wanted["unit"] or 0,
                "measurebench_asks_unit": wanted["unit"] is not None,
            }, (text, evaluator, kwargs)
        assert columns["measurebench"].any()
        right += columns["measurebench"].sum()
    assert 250 < right < 1800


@pytest.mark.parametrize(
    "spellings",
    ["mL ml", "µm μm", "PSI psi Psi", "kPa KPA kpa", "km/h KM/H Km/h", "°C ℃ °c", "cm CM",
     "m3/h m³/h m^3/h", "kg Kg KG", "mmHg mmhg MMHG", "V v", "Ω \u2126", "MPa Mpa", "mPa mpa",
     "rpm RPM", "Celsius CELSIUS"],
)  # fmt: skip
def test_spellings_of_one_unit_are_equal(spellings):
    keys = {unit_key(unit) for unit in spellings.split()}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "units", ["mW MW", "m M cm", "μm μM", "ms mS Ms", "nm Nm", "mPa MPa kPa", "mA MA A", "mL ML",
              "s S", "mpa Mpa", "°C °F K", "V mV kV MV"],
)  # fmt: skip
def test_the_strict_rule_keeps_prefixes_and_symbols_of_the_si_apart(units):
    keys = [unit_key(unit) for unit in units.split()]
    assert len(set(keys)) == len(keys)
    one, other = units.split()[:2]
    columns = MEASUREMENTS.judge(
        [TASK.parse(f"5 {other}")], [Measurement("5", (one,))], texts=[f"5 {other}"]
    )
    assert columns["within_tolerance"].tolist() == [0]
    assert columns["another_unit"].tolist() == [1]


def test_the_two_rules_differ_where_the_documentation_says_so():
    target = Measurement("5", ("mW",), intervals=(Interval(5, 1300, ("mW",)),))
    texts = ["5 mW", "5 MW", "1,250 mW", "It has 5 mW.", "5 mW (0.005 W)", "5,5 mW"]
    columns = MEASUREMENTS.judge([TASK.parse(t) for t in texts], [target] * 6, texts=texts)
    assert columns["measurebench"].tolist() == [1, 1, 1, 1, 0, 1]
    assert columns["within_tolerance"].tolist() == [1, 0, 1, 1, 0, 1]
    target = Measurement("1250", ("mA",), intervals=(Interval(1000, 1300, ("A",)),))
    texts = ["1,250 A", "1250 mA"]
    columns = MEASUREMENTS.judge([TASK.parse(t) for t in texts], [target] * 2, texts=texts)
    assert columns["measurebench"].tolist() == [0, 1]
    assert columns["within_tolerance"].tolist() == [1, 0]


def test_a_text_that_repeats_itself_is_judged_in_linear_time():
    started = time.process_time()
    score_texts(["\\boxed{" * 10_000], [Measurement("5")])
    assert time.process_time() - started < 1  # 9 s if it is quadratic


def test_several_intervals_and_times_are_scored_strictly(targets):
    ruler, hours, clock = targets[6], targets[3], targets[9]
    texts = ["5 cm", "5 mm", "50 mm", "51.1 mm", "5.1 CM", "5"]
    columns = MEASUREMENTS.judge([TASK.parse(t) for t in texts], [ruler] * 6, texts=texts)
    assert columns["within_tolerance"].tolist() == [1, 0, 1, 0, 1, 0]
    assert columns["absolute_error"][:5] == pytest.approx([0, 45, 0, 1.1, 0.1])
    assert columns["another_unit"].tolist() == [0] * 6
    assert MEASUREMENTS.reason(TASK.parse("5"), ruler) == "no unit"
    texts = ["11:30", "11:30:15 h", "11.5 h", "12:05:01", "It is 0:30 now, 11:30"]
    columns = MEASUREMENTS.judge([TASK.parse(t) for t in texts], [hours] * 5, texts=texts)
    assert columns["within_tolerance"].tolist() == [1, 1, 0, 0, 1]
    assert columns["measurebench"].tolist() == [0, 1, 0, 0, 0]
    columns = MEASUREMENTS.judge([TASK.parse("0:04")], [clock], texts=["0:04"])
    assert columns["within_tolerance"] == columns["measurebench"] == 1


@pytest.mark.parametrize(
    ("kwargs", "written"),
    [
        ({"interval": [9.5, 9.7], "units": ["A", "Ampere"]}, "9.6 A"),
        ({"interval": [16, 18], "units": ["mmHg"]}, "17 mmHg"),
        ({"interval": [104, 104.5], "units": []}, "104.25"),
        ({"interval": [5.1500000000000004, 5.45], "units": ["cm"]}, "5.3 cm"),
        ({"interval": [106, 106], "units": ["mmHg"]}, "106 mmHg"),
        ({"interval": [0.1 + 0.2, 0.1 + 0.2], "units": ["A"]}, "0.30000000000000004 A"),
        ({"interval": [1000, 1100], "units": ["psi"]}, "1050 psi"),
        ({"interval": [-0.02, -0.01], "units": [""]}, "-0.015"),
        ({"interval": ["11:10:00", "11:10:00"], "units": ["hours", "h"]}, "11:10 hours"),
        ({"interval": ["05:07:-1", "05:07:01"], "units": []}, "5:07"),
    ],
)
def test_the_middle_of_the_first_interval_is_written_and_right(tmp_path, kwargs, written):
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({**AMMETER, "evaluator_kwargs": kwargs}), encoding="utf-8")
    row = outcome(MeasureBench(), file).row
    (example,) = TASK.examples([("x", row)], training=True)
    text = TASK.format(example.answer).text
    assert text == written
    assert re.fullmatch(TASK.grammar(), text)
    columns = MEASUREMENTS.judge([TASK.parse(text)], [example.answer], texts=[text])
    assert columns["within_tolerance"] == columns["measurebench"] == 1
    assert official(text, "interval_matching", kwargs)["all"]


def test_files_of_measurebench_are_prepared_and_scored(tmp_path):
    file, out = tmp_path / "real.json", tmp_path / "rows.jsonl"
    file.write_text(json.dumps([AMMETER, CLOCK]), encoding="utf-8")
    prepare("measurebench", MeasureBench(), [file], out)
    first, second = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert first == {
        "id": "ammeter_0", "image": "img/ammeter_0.jpg", "question": AMMETER["question"],
        "intervals": [{"low": 9.5, "high": 9.7, "units": ["A", "Ampere"]}],
        "instrument": "ammeter", "category": "dial",
    }  # fmt: skip
    assert second["intervals"][1] == {"low": "20:59:06", "high": "20:59:07", "units": []}
    targets = [
        TASK.record(e.answer) for e in TASK.examples([("a", first), ("b", second)], training=False)
    ]
    texts = ["Final Answer: 9.55 a", "It is 8:59:07."]
    lines = [json.dumps({"id": text, "text": text, "target": target, "task": "measurement"}) + "\n"
             for text, target in zip(texts, targets, strict=True)]  # fmt: skip
    (tmp_path / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    scores = score(tmp_path / "predictions.jsonl")
    found = {name: value["value"] for name, value in scores.metrics().items()}
    assert found["within_tolerance"] == found["measurebench"] == found["measurebench_unit"] == 1
    assert set(scores.buckets()["unit"]) == {"A", "time"}


@pytest.mark.parametrize(
    ("fields", "kind", "why"),
    [
        ({"evaluator": "key_items_matching"}, "evaluator", "not 'key_items_matching'"),
        ({"evaluator_kwargs": "{"}, "evaluator_kwargs", 'expected "interval": \\[low, high\\]'),
        ({"evaluator_kwargs": {"interval": [1, 2]}}, "evaluator_kwargs", "found {'interval'"),
        ({"evaluator_kwargs": {"interval": [1], "units": []}}, "evaluator_kwargs", "expected"),
        ({"evaluator_kwargs": {"interval": ["1", "2"], "units": []}}, "evaluator_kwargs", "exp"),
        ({"evaluator_kwargs": {"interval": [2, 1], "units": []}}, "intervals", "low 2 is above"),
        ({"evaluator_kwargs": {"interval": [1, "1:00"], "units": []}}, "intervals", "number"),
        ({"evaluator_kwargs": {"interval": [1, 2], "units": [3]}}, "intervals", "list of texts"),
        ({"image_type": None}, "text", "image_type must be a non-empty text"),
        ({"img_path": None}, "text", "img_path must be a non-empty text"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_listed(tmp_path, fields, kind, why):
    file = tmp_path / "real.json"
    file.write_text(json.dumps([{**AMMETER, **fields}]), encoding="utf-8")
    (bad,) = outcome(MeasureBench(), file).bad
    assert (bad.kind, bool(re.search(why, bad.why))) == (kind, True), bad.why
