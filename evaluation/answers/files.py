"""Read generated texts from the result files of other tools, which ``TOOLS`` describes.

The tool is recognised by the name of its text field. For ``decode``, a question may have several
texts: several rows with the same id, or a list in one row, such as ``texts``, ``resps`` or the
choices of an OpenAI batch. Answers without an id must be in the order of the questions. With TRL, a
reward function can add the id by ``log_extra("id", ids)``. docs/evaluation/other-tools.md lists the
files of each tool.

Sources: modelscope/ms-swift, swift/pipelines/infer/infer.py; hiyouga/LLaMA-Factory,
scripts/vllm_infer.py and src/llamafactory/train/sft/trainer.py; EvolvingLMMs-Lab/lmms-eval,
lmms_eval/loggers/evaluation_tracker.py; EleutherAI/lm-evaluation-harness, lm_eval/evaluator.py;
lupantech/MathVista, evaluation/generate_response.py; haotian-liu/LLaVA, llava/eval/model_vqa.py;
om-ai-lab/VLM-R1, src/eval/test_rec_r1.py; open-compass/VLMEvalKit, vlmeval/inference.py and
vlmeval/smp/file.py; vllm-project/vllm, vllm/entrypoints/openai/run_batch.py; huggingface/trl,
trl/trainer/grpo_trainer.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.evaluation.answers.spreadsheet import read_sheet
from mm_numeric.io.files import read_rows
from mm_numeric.numbers.numerals import whole_number


@dataclass(frozen=True, kw_only=True)
class AnswerFields:
    """The fields in which a program such as lmms-eval stores generated texts and question ids."""

    tool: str
    text: tuple[str, ...]
    """Name of the field, or a path such as ``response.body.choices.0.message.content``. If there
    are several names, the first field that a row has is read."""

    choices: str = ""
    """Path of all texts of a row, if ``text`` is only the first; ``*`` stands for all items."""

    id: str = "id"
    """Name or path of the field with the id of the question."""

    id_is_position: bool = False
    """True if the id is the position of the question in the data set, counted from 0."""

    prompt: str = "prompt"
    """Name of the field with the prompt, a text or messages, if the file has it."""

    target: str = ""
    """Name of the field with the correct answer, if the file has it."""

    marks: tuple[str, ...] = ()
    """Fields that only this program writes, if other programs have the same text field."""


LLAMA_FACTORY = "LLaMA-Factory"

TOOLS = (
    AnswerFields(tool="mm-numeric", text=("text", "texts")),
    AnswerFields(tool="ms-swift", text=("response",), prompt="messages", target="labels"),
    AnswerFields(tool=LLAMA_FACTORY, text=("predict",), target="label"),
    # lmms-eval only writes the raw responses (resps) of a row if its filters changed them.
    AnswerFields(
        tool="lmms-eval or lm-eval",
        text=("resps", "filtered_resps"),
        id="doc_id",
        id_is_position=True,
        prompt="input",
        target="target",
    ),
    AnswerFields(tool="VLMEvalKit", text=("prediction",), id="index", target="answer"),
    AnswerFields(
        tool="MathVista",
        text=("response",),
        id="pid",
        prompt="query",
        target="answer",
        marks=("pid", "question_type"),
    ),
    AnswerFields(tool="LLaVA", text=("text",), id="question_id", marks=("question_id",)),
    AnswerFields(tool="VLM-R1", text=("model_output",), prompt="question", target="ground_truth"),
    AnswerFields(
        tool="OpenAI batch",
        text=("response.body.choices.0.message.content",),
        choices="response.body.choices.*.message.content",
        id="custom_id",
    ),
    AnswerFields(tool="TRL", text=("completion",)),
)


class GeneratedText(NamedTuple):
    """A generated text from a result file, with the id of the question that it answers."""

    where: str
    """File and line, for error messages."""

    id: str | int | None
    """Id of the question (text), its position from 0 (integer), or None if the file has no ids."""

    texts: list[str]
    """The texts of the row; only ``decode`` allows more than one."""

    row: Mapping[str, Any]
    """All fields of the row with the answer."""

    @property
    def text(self) -> str:
        """Return the first text; most rows have only one."""
        return self.texts[0]


def read_answer_file(
    path: Path,
    *,
    id_field: str | None = None,
    text_field: str | None = None,
    list_field: str | None = None,
    several: bool = False,
) -> tuple[AnswerFields, Iterator[GeneratedText]]:
    """Read the generated texts in a result file, for example one that lmms-eval wrote.

    Returns the names of the fields with text and id, and an iterator over the generated texts.
    ``id_field`` and ``text_field`` are names or paths, such as ``doc.id``; None to detect them.
    ``list_field`` is needed for a .json file with several lists: the field with the answers.
    A row with more than one text is an error unless ``several`` is True.
    """
    readers = {".xlsx": read_sheet, ".parquet": _parquet_rows}
    rows = readers[path.suffix](path) if path.suffix in readers else read_rows(path, list_field)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path}: no answers to score.")
    fields = _fields(*first, id_field, text_field)
    has_ids = id_field is not None or value_at(first[1], fields.id) is not None
    return fields, (
        _generated(where, row, fields, has_ids=has_ids, several=several)
        for where, row in _of_one_filter(chain([first], rows), first[1])
    )


def _of_one_filter(
    rows: Iterable[tuple[str, dict[str, Any]]], first: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of lm-eval's first filter, as it repeats the raw responses for each filter."""
    has_raw = "filter" in first and "resps" in first
    return (own for own in rows if not has_raw or own[1].get("filter") == first["filter"])


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(
            f"{path}: a .parquet file is read with `datasets`, which is not installed; run "
            "`pip install 'mm-numeric[datasets]'`."
        ) from error
    numbers = count(1)
    try:
        for batch in ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path}, row {next(numbers)}", row
    except (OSError, OverflowError, ValueError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: cannot be read ({reason}).") from error


def value_at(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, or of a path such as ``choices.0.text``; None if missing.

    ``*`` in a path stands for all items of a list: ``choices.*.text`` is the list of their texts.
    """
    if field in row:
        return row[field]
    found: Any = row
    before, has_star, after = field.partition(".*.")
    if has_star:
        return [value_at(item, after) for item in value_at(row, before) or ()]
    for key in field.split("."):
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def text_id(value: Any) -> str | None:
    """Return an id as text, so that 7 equals "7". None if it is no integer or non-empty text."""
    if isinstance(value, str) and value:
        return value
    return str(value) if type(value) is int else None


def _fields(
    where: str, row: Mapping[str, Any], id_field: str | None, text_field: str | None
) -> AnswerFields:
    found = [
        tool
        for tool in TOOLS
        if isinstance(_raw_text(row, tool), str | list) and row.keys() >= set(tool.marks)
    ]
    if text_field is None:
        found = [tool for tool in found if tool.marks] or found
    if text_field is not None:
        named = AnswerFields(tool="named field", text=(text_field,))
        known = (
            tool for tool in sorted(found, key=lambda t: not t.marks) if text_field in tool.text
        )
        fields = next(known, named)
        fields = replace(fields, text=(text_field,))
    elif len(found) == 1:
        fields = found[0]
    else:
        problem = "no known field with the generated text"
        if found:
            names = " and ".join(f"{tool.text[0]!r} of {tool.tool}" for tool in found)
            problem = f"several fields may be the generated text ({names})"
        raise ValueError(f"{where}: {problem}; name it with --text. Fields: {', '.join(row)}.")
    return fields if id_field is None else replace(fields, id=id_field, id_is_position=False)


def _raw_text(row: Mapping[str, Any], fields: AnswerFields) -> Any:
    """Return the text of an answer; from a list of messages, the assistant's last message."""
    values = (value_at(row, name) for name in fields.text)
    found = next((value for value in values if value is not None), None)
    if not isinstance(found, list) or not all(isinstance(part, Mapping) for part in found):
        return found
    said = [part.get("content") for part in found if part.get("role") == "assistant"]
    return said[-1] if said else found


def _generated(
    where: str, row: Mapping[str, Any], fields: AnswerFields, *, has_ids: bool, several: bool
) -> GeneratedText:
    all_texts = several and fields.choices
    raw = value_at(row, fields.choices) if all_texts else _raw_text(row, fields)
    while isinstance(raw, list) and any(isinstance(own, list) for own in raw):
        # lmms-eval writes one list of texts for each request.
        raw = [text for own in raw for text in (own if isinstance(own, list) else [own])]
    texts = raw if isinstance(raw, list) else [raw]
    wrong = [f"{own!r:.40}" for own in texts if not isinstance(own, str)]
    if wrong or not texts or (len(texts) > 1 and not several):
        cure = "; `mm-numeric decode` combines them into one" * (len(texts) > 1 and not wrong)
        what = f"{len(texts)} texts"
        if wrong:
            what = wrong[0] if len(texts) == 1 else f"a list with {wrong[0]}"
        wanted = "a generated text or a list of them" if several else "one generated text"
        raise ValueError(f'{where}: "{fields.text[0]}" is {what}, and not {wanted}{cure}.')
    if not has_ids:
        return GeneratedText(where, None, texts, row)
    raw = value_at(row, fields.id)
    identity = text_id(raw)
    if identity is None:
        raise ValueError(
            f'{where}: the id "{fields.id}" is {raw!r:.40}; it must be a text or a whole number.'
        )
    if fields.id_is_position:
        position = whole_number(identity)
        if position is None:
            raise ValueError(
                f'{where}: "{fields.id}" is {raw!r:.40}, and not a position (0, 1 ...).'
            )
        return GeneratedText(where, position, texts, row)
    return GeneratedText(where, identity, texts, row)
