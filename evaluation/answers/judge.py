"""Let a judge (an LLM such as GPT-4) extract answers from the responses of the evaluated model.

No request is sent for a row of predictions that already has an extracted answer. Each answer of the
judge is saved in extractions.jsonl as soon as it arrives, with a hash of the request (URL, model,
prompt, settings). After an interruption, run the same command again: only new requests are sent.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mm_numeric.answers import JudgedText
from mm_numeric.evaluation.metrics.base import JudgeRules, Scorer
from mm_numeric.inference.chat_client import ChatClient, RejectedError
from mm_numeric.inference.chat_reply import Reply, TryAgainError
from mm_numeric.io.atomic_files import append_to
from mm_numeric.io.files import read_rows, write_text
from mm_numeric.io.log import Waiting, progress, without_repeats

EXTRACTIONS = "extractions.jsonl"
"""Name of the file that stores the answers of a judge, next to scores.jsonl."""

Request = Mapping[str, Any]
"""Body of a request for a chat completion."""


@dataclass(frozen=True, kw_only=True)
class Judge(ChatClient):
    """An LLM with an OpenAI-compatible API that extracts answers from responses."""

    what: ClassVar[str] = "judge"
    model_option: ClassVar[str] = "--extract-model"

    model: str | None = None
    """Name of the model on the server; None for the model that the benchmark's script uses."""

    parallel: int = 8
    """Number of requests that are sent at the same time."""

    def ask(self, request: Mapping[str, Any]) -> str:
        """Send a request for a chat completion; return the text of the answer, stripped.

        If an answer is empty or withheld by a filter, the request is sent again; after the last
        attempt, ``""`` is returned. Raises ValueError if the judge cannot be reached, rejects the
        request, reaches its token limit before it writes any text, or returns null instead of a
        text although no filter withheld it.
        """
        try:
            return self.complete(request, self._text)
        except _EmptyTextError:
            return ""

    def _text(self, reply: Reply) -> str:
        """Return the text of a chat completion; raise ``_EmptyTextError`` if it is empty."""
        answer = reply.answers[0]
        if not (answer.content or "").strip() and answer.finish_reason == "length":
            raise ValueError(
                f"{self.endpoint}: the model used all tokens of the answer without writing any "
                "text; choose a model that does not reason first"
            )
        is_withheld = answer.finish_reason == "content_filter" or "refusal" in answer.other_fields
        text = ((answer.content or "") if is_withheld else answer.text).strip()
        if not text:
            raise _EmptyTextError("the answer is empty")
        return text


class _EmptyTextError(TryAgainError):
    """The answer of a judge is an empty text."""


class Response(NamedTuple):
    """The response of a model to a question, and what a judge needs to extract the answer."""

    id: str
    text: str
    question: str | None
    """The prompt that the model answered."""

    target: Any
    extraction: Any
    """The answer that the row says was extracted from ``text``; None if the row has none."""


def judged_answers(
    scorer: Scorer, responses: Sequence[Response], judge: Judge | None, folder: Path, where: str
) -> tuple[Scorer, list[JudgedText]] | None:
    """Return the answers that a judge (an LLM) extracted from responses, and a scorer for them.

    A row that already has an extracted answer keeps it. Without a judge, each row must have one.
    Newly extracted answers are stored in ``folder``. Returns None if the task needs no judge, or if
    there is neither a judge nor an extracted answer.
    """
    rules = scorer.judge_rules
    if judge is not None and rules is None:
        raise ValueError(
            f"{where}: the task is scored without a judge; remove the judge (--extract-with)."
        )
    has_extraction = any(response.extraction is not None for response in responses)
    if rules is None or not (judge or has_extraction):
        return None
    found: list[str | None] = []
    requests: list[tuple[str, Request]] = []
    for response in responses:
        at = f"{where}, id {response.id!r}"
        text = _published(response, at)
        if judge is not None and not (text or "").strip():
            text = rules.without_judge(response.text, response.target)
            if text is None:
                requests.append((response.id, _request(rules, judge, response, at)))
        elif text is None:
            raise ValueError(
                f"{at}: no extraction, and other rows have one; add it, or let a judge extract it "
                "with --extract-with URL."
            )
        found.append(text)
    new: Iterator[str] = iter(())
    facts = {"extraction": "that of the rows"}
    if judge is not None:
        new = iter(_ask_or_read(judge, requests, folder / EXTRACTIONS))
        facts = {
            "extraction": "that of the rows, and by the judge where a row has none",
            "model": judge.model or rules.model,
            "url": judge.endpoint,
            "prompt": "that of the benchmark's script; temperature 0",
        }
    texts = [
        JudgedText(response.text, next(new) if text is None else text)
        for response, text in zip(responses, found, strict=True)
    ]
    return replace(rules.scorer, protocols={**rules.scorer.protocols, "judge": facts}), texts


def _published(response: Response, where: str) -> str | None:
    value = response.extraction
    if isinstance(value, bool) or not isinstance(value, str | int | float | list | None):
        raise ValueError(f"{where}: the extraction {value!r:.60} is not a text.")
    # MathVista's script converts numbers and lists to text, too.
    return value if value is None else str(value)


def _request(rules: JudgeRules, judge: Judge, response: Response, where: str) -> Request:
    if response.question is None:
        raise ValueError(
            f'{where}: no "query" or "prompt" (a text), the question that the judge needs in order '
            "to extract the answer; add it."
        )
    prompt = rules.prompt(response.question, response.text)
    return {
        "model": judge.model or rules.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": rules.max_tokens,
    }


def _ask_or_read(judge: Judge, requests: Sequence[tuple[str, Request]], cache: Path) -> list[str]:
    """Return the answer to each request (row id, body), read from ``cache`` or from the server."""
    keys = [_key(judge, request) for _, request in requests]
    known = _read_cache(cache)
    left = {k: item for k, item in zip(keys, requests, strict=True) if k not in known}
    if left:
        cache.parent.mkdir(parents=True, exist_ok=True)
        known |= _ask_all(judge, left, cache)
    return [known[key] for key in keys]


def _ask_all(judge: Judge, left: Mapping[str, tuple[str, Request]], cache: Path) -> dict[str, str]:
    answers: dict[str, str] = {}
    judge, lock = replace(judge, stopped=threading.Event()), threading.Lock()

    def ask(key: str) -> None:
        row_id, request = left[key]
        line = {"key": key, "id": row_id, "model": request["model"]}
        try:
            text = judge.ask(request)
        except (TryAgainError, RejectedError) as error:
            raise ValueError(f"the row {row_id!r:.60}: {error}") from error
        with lock:
            answers[key] = text
            file.write(json.dumps({**line, "extraction": text}) + "\n")
            file.flush()

    with append_to(cache) as file, without_repeats(), ThreadPoolExecutor(judge.parallel) as pool:
        futures = [pool.submit(ask, key) for key in left]
        try:
            for future in progress(futures, desc="asking the judge", unit="row"):
                Waiting(f"an answer of {judge.url}").result(future)
        except BaseException as error:
            judge.stopped.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, ValueError):
                raise
            raise ValueError(
                f"{error}; {len(answers)} new answers are stored in {cache}: run the same command "
                f"again to ask for the {len(left) - len(answers)} that are missing."
            ) from error
    return answers


def _key(judge: Judge, request: Request) -> str:
    asked = json.dumps([judge.endpoint, request], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def _read_cache(cache: Path) -> dict[str, str]:
    """Return the answers in the file ``cache``; delete an incomplete last line from the file."""
    if not cache.exists():
        return {}
    *lines, rest = cache.read_text(encoding="utf-8").split("\n")
    if rest:  # the process was killed while it wrote the line
        write_text(cache, "".join(line + "\n" for line in lines))
    found = {}
    for where, row in read_rows(cache):
        if not all(isinstance(row.get(name), str) for name in ("key", "extraction")):
            raise ValueError(f"{where}: corrupt; delete the line, and it is asked again.")
        found[row["key"]] = row["extraction"]
    return found
