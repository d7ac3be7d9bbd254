"""Get answers from a model on a server: vLLM, SGLang, ``transformers serve``, llama.cpp and others.

The server has an OpenAI-compatible API and applies its own chat template and image processor. Each
image is resized by the model family and sent as a PNG, so that the server need not resize it. For
every row, the server must count as many prompt tokens as the family (and return the same ids, if it
returns ids): otherwise the model would see another image or another prompt. The family ``api`` has
no tokenizer, so nothing is compared.

Decoding rules need several answers to a question. Before the first question, test requests find
which of these ways the server supports:

    tree        for an answer that is one number or one time, if the server returns
                ``top_logprobs``: the probabilities of texts that ``text_tree`` computes from the
                greedy answer and the drawn answers
    n           answers drawn at random in one request
    requests    one request for each drawn answer, with a seed if the server accepts seeds
"""

import base64
import codecs
import hashlib
import io
import math
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar

from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.framing import load_framed_image
from mm_numeric.families.chat_template import listed, message_content
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.chat_client import ChatClient, RejectedError, T
from mm_numeric.inference.chat_reply import Reply, ServerAnswer, TryAgainError
from mm_numeric.inference.constrain import grammar_of
from mm_numeric.inference.decode import Explorer, Generated, candidates_of_texts
from mm_numeric.inference.text_tree import TextTree, is_short
from mm_numeric.io.log import Waiting, logger, without_repeats

ENDPOINT_KEY = "MM_NUMERIC_API_KEY"
"""Environment variable with the API key of the server. ``OPENAI_API_KEY`` is not used, because
other servers must not get that key."""


@dataclass(frozen=True, kw_only=True)
class Endpoint(ChatClient):
    """A server with an OpenAI-compatible API, and the name of the model on it."""

    key_name: ClassVar[str] = ENDPOINT_KEY
    model_option: ClassVar[str] = "--served-model"

    model: str

    concurrency: int = 8
    """Number of rows that are sent at the same time."""

    names: Mapping[str, str | None] = field(default_factory=dict)
    """Other names that the server uses for request fields; None for a field that is left out."""

    attempts: int = 10  # with waits of four minutes in total, so that a server can be restarted
    timeout_s: float = 600.0

    def complete(self, request: Mapping[str, Any], read: Callable[[Reply], T]) -> T:
        """Rename the fields of a request with ``names``, send it, and return ``read(reply)``."""
        named = [(self.names.get(name, name), value) for name, value in request.items()]
        return super().complete({name: value for name, value in named if name is not None}, read)

    def record(self) -> dict[str, str]:
        """Return the URL and the model, which are stored next to predictions.jsonl."""
        return {"endpoint": self.endpoint, "served_model": self.model}


def endpoint_answers(
    endpoint: Endpoint,
    config: Config,
    family: Family,
    examples: Sequence[Example],
    explore: Explorer | None,
) -> Generator[Generated]:
    """Return a generator of a served model's answers to the examples, in their order.

    Before it returns, the first question is sent to find which features the server supports. If
    ``explore`` is not None, the server is also asked for answers other than the greedy one.

    Raises:
        ValueError: If the server lacks a feature that the config requires, counts another number of
            prompt tokens than the family, or does not answer after several attempts.
    """
    served_text = family.tokenizer is None or family.chat_template
    if config.model.baseline is not None or not served_text:
        name = family.name if config.model.baseline is None else "a baseline"
        raise ValueError(
            f"--endpoint: the prompt of {name} is not written with a chat template, so no server "
            "can write it; predict without --endpoint."
        )
    served = _Served(endpoint, config, family, explore)
    with served.pool(1) as pool:
        served.waiting().result(pool.submit(served.probe, examples[0]))
    return _answers(served, examples)


def _bos_field(family: Family) -> dict[str, bool]:
    """Return the request field that adds a BOS token which the chat template does not write.

    It is needed if the family's prompts begin with a BOS token that the tokenizer adds: without the
    field, vLLM leaves the token out; transformers does not.
    """
    if family.tokenizer is None:
        return {}
    bos = family.tokenizer.bos_token_id
    # The family's prompts must begin with it: causal_lm adds no tokens to the template's.
    if bos is None or family.tokenize_question("?", family.takes_images)[:1] != [bos]:
        return {}
    is_written = family.chat_prompt("?", family.takes_images).startswith(family.tokenizer.bos_token)
    return {} if is_written else {"add_special_tokens": True}


def _answers(served: "_Served", examples: Sequence[Example]) -> Generator[Generated]:
    """Yield the answer to each example. Requests run in parallel, up to 4 * count rows ahead."""
    count = served.endpoint.concurrency
    pending: deque[Future[Generated]] = deque()
    with without_repeats(), served.pool(count) as pool:
        for example in examples:
            pending.append(pool.submit(served.answer, example))
            if len(pending) == 4 * count:
                yield served.waiting().result(pending.popleft())
        while pending:
            yield served.waiting().result(pending.popleft())


class _Served:
    def __init__(
        self, endpoint: Endpoint, config: Config, family: Family, explore: Explorer | None
    ) -> None:
        self.endpoint = replace(endpoint, stopped=threading.Event())
        self.family, self.explore = family, explore
        self.task, self.settings = config.task, config.predict
        self.abilities = Abilities(fields=_bos_field(family))
        self.lock = threading.Lock()  # tokenizers and caches of the family are not thread-safe

    @contextmanager
    def pool(self, threads: int) -> Iterator[ThreadPoolExecutor]:
        """Return a context with a pool of threads; an error in the context ends open requests."""
        with ThreadPoolExecutor(threads) as pool:
            try:
                yield pool
            except BaseException as error:  # also KeyboardInterrupt and GeneratorExit
                self.endpoint.stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, TryAgainError):
                    text = f"{error}; the answers so far are stored: {error.advice}."
                    raise ValueError(text) from error
                raise

    def waiting(self) -> Waiting:
        """Return a ``Waiting``, whose log messages name the server."""
        return Waiting(f"an answer of {self.endpoint.url}")

    def probe(self, example: Example) -> None:
        """Find the features of the server; raise ValueError if it lacks one that is required."""
        question = self._question(example)
        fields = self.abilities.fields
        rejected: RejectedError | None = None
        for own, names in [*([(fields, {})] if fields else ()), *(({}, own) for own in _NAMES)]:
            self.endpoint, fields = replace(self.endpoint, names=names), own
            try:  # a wrong URL, key, model or number of tokens is reported first
                self._ask(question, fields)
                break
            except RejectedError as error:
                rejected = rejected or error
        else:
            assert rejected is not None
            raise rejected
        if "temperature" in self.endpoint.names:
            logger.warning(
                "%s accepts no temperature: its answers are drawn at random, and not greedy.",
                self.endpoint.url,
            )
        needs_tree = self.explore is not None and not self.task.sampled_answers
        found = probe(self.endpoint, {**question.body, **fields}, self.family, tree=needs_tree)
        self.abilities = replace(found, fields={**fields, **found.fields})
        if self.settings.constrain and self.abilities.regex is None:
            raise ValueError(
                f"predict.constrain: {self.endpoint.url} does not constrain answers to a regular "
                "expression (structured_outputs of vLLM, regex of SGLang); predict without "
                "--constrain, or without --endpoint."
            )
        if self.settings.constrain:
            logger.info("token scores are not stored: with a constraint, the server changes them")
        if self.settings.limits_lists:
            logger.info("lists are shortened after the server has generated them to their end")
        if self.explore is not None:
            self._probe_draws(question, self.explore.count)

    def _probe_draws(self, question: "_Question", count: int) -> None:
        """Find how the server can return several answers to a question, and log the result."""
        ways = []
        if self.abilities.top_logprobs:
            ways.append("if the greedy one is a number or a time, from the tree of top_logprobs")
        if count:
            body = {**question.body, **self.abilities.fields, "max_tokens": 1}
            drawn, _ = _accepted(self.endpoint, body, _DRAWN)
            several = _draws_at_once(self.endpoint, {**body, **drawn}, count)
            self.abilities = replace(self.abilities, drawn=drawn, several=several)
            way = f"{count} drawn in one request (n)"
            if not several:
                seeds = "with" if "seed" in drawn else "without"
                way = f"{count} drawn in {count} requests, {seeds} seeds"
            ways.append(way)
        if not ways:
            raise ValueError(
                f"predict.decode: {self.endpoint.url} returns no top_logprobs, so that answers "
                "cannot be enumerated; set --samples, or use --decode greedy."
            )
        logger.info("%s: answers for decoding: %s", self.endpoint.url, "; ".join(ways))

    def answer(self, example: Example) -> Generated:
        """Return the answer to a question."""
        question = self._question(example)
        fields = dict(self.abilities.fields)
        if question.grammar is not None and self.abilities.regex is not None:
            fields |= self.abilities.regex(question.grammar)
        (choice,) = self._ask(question, fields)
        with self.lock:
            found = self._generated(choice, question)
        if self.explore is None:
            return found
        choices = self._draw(question, fields, example.id, self.explore.count)
        with self.lock:
            return self._explored(found, question, choice, choices)

    def _draw(
        self, question: "_Question", fields: dict[str, Any], name: str, count: int
    ) -> list[ServerAnswer]:
        """Return ``count`` answers drawn by the server, with seeds made from the id ``name``."""
        fields = {**fields, **self.abilities.drawn}
        if self.abilities.several:
            return self._ask(question, {**fields, **self._seed(name), "n": count}, count)
        return [
            self._ask(question, {**fields, **self._seed(f"{name} {i}")})[0] for i in range(count)
        ]

    def _seed(self, name: str) -> dict[str, int]:
        if "seed" not in self.abilities.drawn:
            return {}
        return {"seed": int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1}

    def _explored(
        self,
        found: Generated,
        question: "_Question",
        greedy: ServerAnswer,
        drawn: Sequence[ServerAnswer],
    ) -> Generated:
        assert self.explore is not None
        text = self._generated(greedy, question).text
        if self.abilities.top_logprobs and (is_short(text) or not drawn):
            tree = TextTree()
            for own in (greedy, *drawn):
                written = self._generated(own, question).text
                tree.add(written, own.logprobs, own.top_logprobs, is_complete=own.is_complete)
            candidates = candidates_of_texts(self.task, question.frame, tree.probabilities())
            return found._replace(candidates=candidates, is_partial=True)
        texts = [self._generated(own, question).text for own in drawn if own.is_complete]
        shares = {own: number / len(drawn) for own, number in Counter(texts).items()}
        candidates = candidates_of_texts(self.task, question.frame, shares)
        return found._replace(candidates=candidates, samples=len(drawn))

    def _question(self, example: Example) -> "_Question":
        image, frame = load_framed_image(self.family, example)
        content: Any = example.prompt
        if image is not None:
            images = listed(image)
            urls = [_data_url(self.family.resize_image_once(own)) for own in images]
            shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            content = message_content(example.prompt, shown)
        body = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.settings.new_tokens,
            "temperature": 0.0,
        }
        if self.family.template_options:
            body["chat_template_kwargs"] = dict(self.family.template_options)
        grammar = grammar_of(self.task, frame) if self.settings.constrain else None
        ids = None
        if self.family.tokenizer is not None:
            with self.lock:
                ids = self.family.prompt_ids(example.prompt, image)
        return _Question(example.where, body, ids, frame, grammar)

    def _ask(
        self, question: "_Question", fields: dict[str, Any], count: int = 1
    ) -> list[ServerAnswer]:
        """Send a question, check the numbers of prompt tokens and answers; return the answers."""

        def read(reply: Reply) -> list[ServerAnswer]:
            self._check_prompt(question, reply)
            if len(reply.answers) != count:
                raise ValueError(
                    f"{question.where}: {self.endpoint.url} returned {len(reply.answers)} answers "
                    f"instead of {count}; use another server, or --decode greedy."
                )
            for answer in reply.answers:
                if answer.ids is None:
                    _ = answer.text  # raises an error if there is none
            return reply.answers

        try:
            return self.endpoint.complete({**question.body, **fields}, read)
        except (TryAgainError, RejectedError) as error:
            raise type(error)(f"{question.where}: {error}") from error

    def _check_prompt(self, question: "_Question", reply: Reply) -> None:
        """Raise ValueError if the server's prompt has other tokens than the family's prompt."""
        ids, own = reply.prompt_ids, question.prompt_ids
        if own is None:
            return
        counted = len(own) if reply.prompt_tokens is None else reply.prompt_tokens
        if counted != len(own) or (ids is not None and ids != own):
            counts = f"has {counted} tokens on the server and {len(own)} in {self.family.name}"
            if counted == len(own):
                counts = f"has {counted} tokens, of which some differ on the server"
            raise ValueError(
                f"{question.where}: the prompt {counts}: the chat template or the size of images "
                f"is another one. Serve the folder that `mm-numeric export` wrote for this model."
            )

    def _generated(self, choice: ServerAnswer, question: "_Question") -> Generated:
        """Convert an answer of the server: cut its text at the end token, check the grammar."""
        family, frame = self.family, question.frame
        probabilities = [math.exp(logprob) for logprob, _ in choice.logprobs]
        if choice.ids is not None:
            found = Generated(family.text(choice.ids), frame, choice.ids, probabilities)
        else:
            text = choice.text
            for token in (*family.stop_ids, family.pad_id) if family.tokenizer else ():
                text = text.partition(family.tokenizer.convert_ids_to_tokens(token))[0]
            lengths = _lengths(text, choice)
            found = Generated(text, frame, (), probabilities if lengths else (), lengths=lengths)
        found = found._replace(is_truncated=choice.finish_reason == "length")
        if question.grammar is None:
            return found
        if choice.is_complete and not re.fullmatch(question.grammar, found.text):
            raise ValueError(
                f"{question.where}: {self.endpoint.url} wrote {found.text!r:.80}, which does not "
                "match the grammar of the task; predict without --constrain, or without --endpoint."
            )
        # vLLM normalises over the allowed tokens, but `predict` stores probabilities over all.
        return found._replace(probabilities=())


def _lengths(text: str, choice: ServerAnswer) -> list[int]:
    """Return the length of the text up to the end of each token; [] if tokens do not spell it."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    pieces = [decode(spelling) for _, spelling in choice.logprobs]
    return list(accumulate(map(len, pieces))) if "".join(pieces).startswith(text) else []


@dataclass(frozen=True)
class _Question:
    where: str
    """File and line of the row, for error messages."""

    body: dict[str, Any]
    """The fields of the request that every server accepts."""

    prompt_ids: list[int] | None
    """Token ids of the prompt that the family writes; None if the family has no tokenizer."""

    frame: Frame | None
    """Image size and coordinate format that the model uses; None without an image."""

    grammar: str | None
    """Regular expression that the answer must match; None if answers are not constrained."""


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


_NAMES: Sequence[Mapping[str, str | None]] = (
    {},
    {"max_tokens": "max_completion_tokens"},  # models of OpenAI that reason
    {"max_tokens": "max_completion_tokens", "temperature": None},
)
"""Renamed fields to try one after another, until the server rejects no field."""

_REGEX, _MATCH = "(zq){3}", "zqzqzq"  # no model writes this text without a constraint
_REGEX_FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "structured_outputs": lambda regex: {"structured_outputs": {"regex": regex}},  # vLLM
    "regex": lambda regex: {"regex": regex},  # SGLang
}


@dataclass(frozen=True)
class Abilities:
    """The optional features that a server supports."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Optional fields that the server accepts; they are added to every request."""

    regex: Callable[[str], dict[str, Any]] | None = None
    """Function that returns the request fields for a regular expression that answers must match;
    None if the server has no such fields."""

    top_logprobs: bool = False
    """True if the server returns the likeliest tokens at each position."""

    drawn: dict[str, Any] = field(default_factory=dict)
    """Request fields for sampling, such as ``temperature``, that the server accepts."""

    several: bool = False
    """True if the server returns several answers to one request (field ``n``)."""


_TOP = (20, 5)
"""Numbers of likeliest tokens per position to request, until the server accepts one of them: 20 is
the limit of OpenAI and vLLM, and 5 the limit of other servers."""

_DRAWN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": 0}
"""Fields with which a server draws answers from the distribution of the model."""


def probe(
    client: ChatClient, body: dict[str, Any], family: Family, *, tree: bool = False
) -> Abilities:
    """Send test requests to find which features a server supports; log one line for each.

    HTTP 200 does not prove that a server applies a field: ``transformers serve`` (5.23) ignores
    ``logprobs``, and vLLM ignores ``guided_regex``, which it once supported. Other servers reject
    unknown fields. ``body`` is a request that the server has answered. If ``tree`` is True, the
    likeliest tokens at each position (``top_logprobs``) are requested too.
    """
    wanted: dict[str, Any] = {
        "frequency_penalty": 0.0,  # transformers serve derives its repetition penalty from this
        "skip_special_tokens": False,  # some families write coordinates with special tokens
        "repetition_penalty": 1.0,  # overrides the checkpoint's generation settings
        "logprobs": True,
    }
    if family.tokenizer is not None:
        wanted |= {"stop_token_ids": family.stop_ids, "return_token_ids": True}
    body = {**body, "max_tokens": 1}
    accepted, reply = _accepted(client, body, wanted)
    for most in _TOP if tree and "logprobs" in accepted else ():
        found, reply = _accepted(client, {**body, **accepted}, {"top_logprobs": most})
        accepted |= found
        if found:
            break
    answer = reply.answers[0]
    regex, results = None, []
    for name, fields in _REGEX_FIELDS.items():
        result = _try_regex(client, {**body, **accepted, **fields(_REGEX)})
        results.append(f"{name} is {result}")
        if result == "obeyed":
            regex = fields
            break
    lines = {} if family.tokenizer is None else _token_lines(reply, accepted, family)
    lines |= {
        "logprobs": _returned(bool(answer.logprobs), "logprobs" in accepted),
        "constraints": ", ".join(results),
        "rejected fields": ", ".join(name for name in wanted if name not in accepted) or "none",
    }
    has_top = any(answer.top_logprobs)
    if tree:
        lines["top_logprobs"] = _returned(has_top, "top_logprobs" in accepted)
    for name, text in lines.items():
        logger.info("%s: %s: %s", client.url, name, text)
    return Abilities(accepted, regex, top_logprobs=has_top)


def _token_lines(reply: Reply, accepted: Mapping[str, Any], family: Family) -> dict[str, str]:
    is_returned = reply.answers[0].ids is not None
    ids, counted = _returned(is_returned, "return_token_ids" in accepted), reply.prompt_tokens
    if not is_returned:  # transformers serve strips white space, llama.cpp special tokens
        ids += "; texts are as the server writes them, perhaps without special tokens"
    prompt = f"{counted}, as in {family.name}; compared for each row"
    if counted is None:
        prompt = "not reported, so a wrong template or image size is not noticed"
    return {"prompt tokens": prompt, "token ids": ids}


def _accepted(
    client: ChatClient, body: dict[str, Any], wanted: dict[str, Any]
) -> tuple[dict[str, Any], Reply]:
    """Return the ``wanted`` fields that the server does not reject, and its reply to them."""
    try:
        return wanted, client.complete({**body, **wanted}, _as_it_is)
    except RejectedError:
        accepted: dict[str, Any] = {}
    for name, value in wanted.items():
        try:
            client.complete({**body, **accepted, name: value}, _as_it_is)
            accepted[name] = value
        except RejectedError:
            continue
    return accepted, client.complete({**body, **accepted}, _as_it_is)


def _draws_at_once(client: ChatClient, body: dict[str, Any], count: int) -> bool:
    try:
        reply = replace(client, attempts=2).complete({**body, "n": count}, _as_it_is)
    except (RejectedError, TryAgainError):
        return False
    return len(reply.answers) == count


def _try_regex(client: ChatClient, body: dict[str, Any]) -> str:
    """Send a request with a regular expression; return ``obeyed``, ``ignored`` or ``rejected``."""
    try:
        once_again = replace(client, attempts=2)
        reply = once_again.complete({**body, "max_tokens": 16}, _as_it_is)
    except (RejectedError, TryAgainError) as error:
        return f"rejected ({error})" if isinstance(error, TryAgainError) else "rejected"
    return "obeyed" if reply.answers[0].content == _MATCH else "ignored"


def _as_it_is(reply: Reply) -> Reply:
    return reply


def _returned(is_returned: bool, is_accepted: bool) -> str:
    return "returned" if is_returned else "ignored" if is_accepted else "rejected"
