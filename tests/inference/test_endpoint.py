"""predict --endpoint with a server that fails in all ways: nothing lost, nothing silent."""

import argparse
import base64
import io
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chat_server import chat_server
from faulty_server import Server
from PIL import Image
from synthetic_rows import data_for
from tiny_models import small_config
from tiny_qwens import qwen
from tokenizers.processors import TemplateProcessing

from mm_numeric.answers import Example
from mm_numeric.cli import main as cli
from mm_numeric.cli.predict import add_endpoint
from mm_numeric.cli.predict import endpoint_of as endpoint_of_words
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.config.reader import read_config
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.images import open_image
from mm_numeric.families.causal_lm import CausalLM
from mm_numeric.families.chat import Chat
from mm_numeric.families.llava import Llava
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.tiny import tiny_gpt2_tokenizer
from mm_numeric.inference.decode import Generated
from mm_numeric.inference.endpoint import ENDPOINT_KEY, Endpoint, endpoint_answers
from mm_numeric.inference.generate import predict
from mm_numeric.registry import FAMILIES, choose

KEY = "sk-very-secret-1234"


@pytest.fixture(autouse=True)
def no_key_and_no_proxy(monkeypatch):
    for name in (ENDPOINT_KEY, "OPENAI_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the file of a config that asks 12 questions without images."""
    folder = tmp_path_factory.mktemp("endpoint")
    Qwen2_5VL.make_tiny(folder / "model", seed=0)
    made = small_config(
        folder,
        "predict.max_new_tokens=16",
        "task=arithmetic",
        *data_for("arithmetic", 4, 12),
        f"model={{family: qwen2_5_vl, name: {folder / 'model'}, dtype: float32}}",
        "objective=ce",
    )
    file = folder / "config.yaml"
    file.write_text(made.to_yaml(), encoding="utf-8")
    return file


@contextmanager
def serving(**changes):
    """Run a server; yield an endpoint without waits, and the list of the requests."""
    with chat_server(Server(**changes), of=lambda body: body) as (url, requests):
        yield Endpoint(url=url, model="tiny", wait_s=0.0, attempts=3, concurrency=4), requests


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_row_is_answered_once_in_order_however_the_server_fails(config, tmp_path):
    out = tmp_path / "p.jsonl"
    failures = [(429, b"slow", {"Retry-After": "0.01"}), (500, b"<html>"), (200, b"<html>")]
    with serving() as (endpoint, requests):
        predict(config, None, tmp_path / "whole.jsonl", endpoint=endpoint)
        whole = len(requests)
    failures += [(200, [1]), (503, b""), (200, {"choices": []})]
    twice = [each for failure in failures for each in (failure, failure, None)]
    with serving(failures=twice) as (endpoint, found):
        assert predict(config, None, out, endpoint=endpoint_of(endpoint, concurrency=1)) == 12
        assert len(found) == whole + 2 * len(failures)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [row["id"] for row in rows(out)] == [f"2-{i:06d}" for i in range(12)]
    assert {row["text"] for row in rows(out)} == {"7"}


def endpoint_of(endpoint, **changes):
    return Endpoint(**{**vars(endpoint), **changes})


def test_a_request_is_greedy_and_without_the_checkpoint_s_penalties(config, tmp_path):
    with serving() as (endpoint, requests):
        predict(config, None, tmp_path / "p.jsonl", endpoint=endpoint, max_new_tokens=9)
    path, _, body = requests[-1]
    del body["messages"]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "tiny",
        "max_tokens": 9,
        "temperature": 0.0,
        "frequency_penalty": 0.0,
        "skip_special_tokens": False,
        "repetition_penalty": 1.0,
        "stop_token_ids": qwen(Qwen2_5VL).stop_ids,
        "return_token_ids": True,
        "logprobs": True,
    }


def test_a_server_that_fails_for_good_keeps_the_answers_and_only_the_rest_is_asked(
    config, tmp_path
):
    out, dead = tmp_path / "p.jsonl", threading.Event()

    class Dying(Server):
        def __call__(self, body):
            if len(requests) > 9:
                dead.set()
            return (503, b"") if dead.is_set() else super().__call__(body)

    with chat_server(Dying(), of=lambda body: body) as (url, requests):
        endpoint = Endpoint(url=url, model="tiny", wait_s=0.0, attempts=3, concurrency=1)
        with pytest.raises(ValueError, match=r"HTTP 503 .*, 3 times; .* run the same command") as e:
            predict(config, None, out, endpoint=endpoint)
        assert "\n" not in str(e.value)
        answered = len(rows(out))
        assert 0 < answered < 12
        with out.open("a", encoding="utf-8") as file:
            file.write('{"id": "2-0000')  # and the client was killed in the middle of a line
        requests.clear()
        with pytest.raises(ValueError, match="3 times"):
            predict(config, None, out, endpoint=endpoint)  # still down: nothing changes
        assert len(rows(out)) == answered
        Dying.__call__ = Server.__call__
        requests.clear()
        assert predict(config, None, out, endpoint=endpoint) == 12 - answered
        asked = [body["messages"][0]["content"] for *_, body in requests][4 - 1 :]
        assert asked == [row["prompt"] for row in rows(out)[answered:]]
    assert [row["id"] for row in rows(out)] == [f"2-{i:06d}" for i in range(12)]


def test_a_row_that_the_server_never_answers_is_named(config, tmp_path):
    out = tmp_path / "p.jsonl"

    class FailsAtTheSixth(Server):
        def __call__(self, body):
            prompts = list(dict.fromkeys(sent["messages"][0]["content"] for *_, sent in requests))
            return (500, b"<html>") if len(prompts) == 6 else super().__call__(body)

    with chat_server(FailsAtTheSixth(), of=lambda body: body) as (url, requests):
        endpoint = Endpoint(url=url, model="tiny", wait_s=0.0, concurrency=1)
        with pytest.raises(ValueError, match=r"HTTP 500 .*, 3 times; .* see the log of") as error:
            predict(config, None, out, endpoint=endpoint)
    assert re.match(r".*\.jsonl, line 6: http", str(error.value))
    assert len(rows(out)) == 5


def test_answers_without_text_are_no_empty_answers(config, tmp_path):
    """A server that puts the text into another field, as vLLM does with a parser of reasoning."""

    class Silent(Server):
        def choice(self, text, body):
            found = super().choice(text, body)
            found["message"] |= {"content": None, "reasoning": text}
            return found

    out = tmp_path / "p.jsonl"
    with chat_server(Silent(ignores=("return_token_ids",)), of=lambda body: body) as (url, _):
        endpoint = Endpoint(url=url, model="tiny", wait_s=0.0)
        message = r"line 1: http.*no text \(content is null, the message has reasoning\); serve"
        with pytest.raises(ValueError, match=message):
            predict(config, None, out, endpoint=endpoint)
    assert not out.exists() or rows(out) == []


@pytest.mark.slow
def test_a_server_that_hangs_is_reported_and_ends(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mm_numeric.io.log.WAITING_S", 0.05)
    ended = threading.Event()

    class Hanging(Server):
        def __call__(self, body):
            if len(requests) > 5:
                ended.wait(10)
            return super().__call__(body)

    with chat_server(Hanging(), of=lambda body: body) as (url, requests):
        endpoint = Endpoint(url=url, model="tiny", wait_s=0.0, timeout_s=0.3, concurrency=2)
        message = r"line \d: .*: no whole answer in 0\.3 s, 2 times; .* with a larger --timeout\.$"
        with pytest.raises(ValueError, match=message):
            predict(config, None, tmp_path / "p.jsonl", endpoint=endpoint)
        ended.set()
    lines = capsys.readouterr().err.splitlines()
    waits = [line for line in lines if f"waiting for an answer of {url} (" in line]
    assert len(waits) > 5


def test_the_timeout_of_the_command_line_is_that_of_a_request():
    parser = argparse.ArgumentParser()
    add_endpoint(parser)
    for more, seconds in (([], 600), (["--timeout", "7"], 7)):
        words = ["--endpoint", "http://h/v1", "--served-model", "m", *more]
        others = argparse.Namespace(batch_size=None, tensor_parallel=None, engine="local")
        assert endpoint_of_words(parser.parse_args(words, others)).timeout_s == seconds


def test_another_prompt_on_the_server_is_found_on_the_first_row(config, tmp_path):
    out = tmp_path / "p.jsonl"
    with (
        serving(more_tokens=2) as (endpoint, requests),
        pytest.raises(ValueError, match=r"the prompt has (\d+) tokens on the server and \d+ in Q"),
    ):
        predict(config, None, out, endpoint=endpoint)
    assert len(requests) == 1
    assert not out.exists()

    class OtherIds(Server):
        def __call__(self, body):
            status, found = super().__call__(body)
            if "prompt_token_ids" in found:
                found["prompt_token_ids"][0] += 1
            return status, found

    with chat_server(OtherIds(), of=lambda body: body) as (url, _):
        endpoint = Endpoint(url=url, model="tiny")
        with pytest.raises(ValueError, match="tokens, of which some differ on the server"):
            predict(config, None, out, endpoint=endpoint)


def test_what_the_server_does_is_logged(config, tmp_path, capsys):
    with serving() as (endpoint, _):
        predict(config, None, tmp_path / "a.jsonl", endpoint=endpoint)
    said = capsys.readouterr().err
    for line in ("as in Qwen2.5-VL; compared", "token ids: returned", "logprobs: returned"):
        assert line in said
    assert "constraints: structured_outputs is obeyed\n" in said
    assert "rejected fields: none\n" in said
    ignored = ("structured_outputs", "return_token_ids", "logprobs")
    rejects = ("frequency_penalty", "skip_special_tokens")
    with serving(ignores=ignored, rejects=rejects) as (endpoint, requests):
        predict(config, None, tmp_path / "b.jsonl", endpoint=endpoint)
        assert requests[-1][2].keys().isdisjoint(rejects)
    said = capsys.readouterr().err
    assert "token ids: ignored" in said
    assert "logprobs: ignored" in said
    assert "constraints: structured_outputs is ignored, regex is ignored\n" in said
    assert "rejected fields: frequency_penalty, skip_special_tokens\n" in said
    assert rows(tmp_path / "a.jsonl") == rows(tmp_path / "b.jsonl")


def test_constrained_answers_match_the_grammar_or_it_is_an_error(config, tmp_path):
    out = tmp_path / "p.jsonl"
    with serving(texts={"default": "-12"}) as (endpoint, requests):
        predict(config, None, out, endpoint=endpoint, constrain=True)
        assert "regex" in requests[-1][2]["structured_outputs"]
        constrained = replace(
            read_config(config), predict=PredictConfig(constrain=True, max_new_tokens=16)
        )
        example = Example(id="1", image=None, prompt="7 - 19?", answer=None, where="row 1")
        (found,) = endpoint_answers(endpoint, constrained, qwen(Qwen2_5VL), [example], None)
        assert (found.text, found.probabilities) == ("-12", ())  # the server's are other ones
    with (
        serving(ignores=("structured_outputs",)) as (endpoint, _),
        pytest.raises(ValueError, match="does not constrain answers to a regular expression"),
    ):
        predict(config, None, tmp_path / "q.jsonl", endpoint=endpoint, constrain=True)
    with (
        serving(texts={"default": "about 7"}) as (endpoint, _),
        pytest.raises(ValueError, match="wrote 'about 7', which does not match the grammar"),
    ):
        predict(config, None, tmp_path / "r.jsonl", endpoint=endpoint, constrain=True)
    assert not (tmp_path / "q.jsonl").exists()
    assert rows(tmp_path / "r.jsonl") == []


def test_drawn_answers_are_decoded_by_a_rule(config, tmp_path):
    out = tmp_path / "p.jsonl"
    with serving() as (endpoint, requests):
        predict(config, None, out, endpoint=endpoint, decode="median", samples=4)
        assert (requests[-1][2]["n"], requests[-1][2]["temperature"]) == (4, 1.0)
    row = rows(out)[0]
    assert (row["greedy"], row["text"]) == ("7", "9")
    assert row["decode"]["candidates"] == 2
    assert (row["decode"]["covered"], row["decode"]["drawn"]) == (0.0, 1.0)
    for ignores, text in (("return_token_ids", "9"), ("n", "7")):
        with serving(ignores=(ignores,)) as (endpoint, _):
            path = tmp_path / f"{ignores}.jsonl"
            predict(config, None, path, endpoint=endpoint, decode="median", samples=4)
        assert {row["text"] for row in rows(path)} == {text}
    with (
        serving() as (endpoint, _),
        pytest.raises(ValueError, match="returns no top_logprobs, so that answers cannot be enum"),
    ):
        predict(config, None, tmp_path / "q.jsonl", endpoint=endpoint, decode="median")


TEXT = "a<|box_start|>(1,22),(3,4)<|box_end|>é<|box_start|>(5,6),(7,8)<|box_end|>"


@pytest.mark.parametrize("ignores", [(), ("return_token_ids",), ("logprobs",)])
def test_token_scores_are_those_of_the_tokens(tmp_path, ignores):
    family = qwen(Qwen2_5VL)
    made = small_config(
        tmp_path, "task=text_detection", "model.family=qwen2_5_vl", "predict.max_new_tokens=16"
    )
    example = Example(id="1", image=None, prompt="words", answer=None, where="row 1")
    with serving(ignores=ignores, texts={"default": TEXT}) as (endpoint, _):
        (found,) = endpoint_answers(endpoint, made, family, [example], None)
    assert found.text == TEXT
    if "logprobs" in ignores:
        assert not found.probabilities
        return
    ids = family.answer(TEXT).ids
    own = Generated(TEXT, None, ids, [1 / (i + 2) for i in range(len(ids))])
    for part in ("<|box_start|>(1,22),(3,4)<|box_end|>", "<|box_start|>(5,6),(7,8)<|box_end|>"):
        span = TEXT.index(part), TEXT.index(part) + len(part)
        mean = own.mean_probability(family, span)
        assert found.mean_probability(family, span) == pytest.approx(mean)


def test_the_api_key_is_sent_and_nowhere_written(config, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv(ENDPOINT_KEY, KEY)
    with serving() as (endpoint, requests):
        words = ["--verbose", "predict", "--model", str(config), "--served-model", "tiny"]
        words += ["--endpoint", endpoint.url, "--out", str(tmp_path / "p.jsonl")]
        assert cli.main(words) == 0
        assert {headers["Authorization"] for _, headers, _ in requests} == {f"Bearer {KEY}"}
    text = f"Incorrect API key provided: {KEY}"
    cut = (401, {"error": {"message": f"{'x' * (200 - len(KEY) // 2)}{KEY}"}})
    with serving(failures=[cut]) as (endpoint, _):
        words[words.index("--endpoint") + 1] = endpoint.url
        assert cli.main([*words, "--out", str(tmp_path / "cut.jsonl")]) == 2
    said = capfd.readouterr()
    assert KEY[: len(KEY) // 2] not in said.out + said.err
    echo = (401, {"error": {"message": text}})
    with serving(failures=[echo]) as (endpoint, _):
        words[words.index("--endpoint") + 1] = endpoint.url
        assert cli.main([*words, "--out", str(tmp_path / "q.jsonl")]) == 2
    said = capfd.readouterr()
    assert "HTTP 401 (Incorrect API key provided: ***); set MM_NUMERIC_API_KEY" in said.err
    monkeypatch.setenv(ENDPOINT_KEY, f"{KEY}\nX-Other: 1")
    assert cli.main([*words, "--out", str(tmp_path / "r.jsonl")]) == 2
    said_too = capfd.readouterr()
    assert "MM_NUMERIC_API_KEY is no API key: it has a line break" in said_too.err
    assert KEY not in said.out + said.err + said_too.out + said_too.err
    files = [path for path in [*tmp_path.rglob("*"), *config.parent.rglob("*")] if path.is_file()]
    assert len(files) >= 8
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.slow
def test_the_key_of_openai_is_not_sent_to_other_servers(config, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with serving() as (endpoint, requests):
        words = ["predict", "--model", str(config), "--served-model", "tiny"]
        assert (
            cli.main([*words, "--endpoint", endpoint.url, "--out", str(tmp_path / "p.jsonl")]) == 0
        )
    assert not any("Authorization" in headers for _, headers, _ in requests)


def test_answers_of_another_server_model_or_run_are_not_mixed(config, tmp_path):
    out = tmp_path / "p.jsonl"
    with serving() as (endpoint, _):
        predict(config, None, out, endpoint=endpoint, limit=2)
        with pytest.raises(ValueError, match=r"served_model is 'tiny' there and 'large' here"):
            predict(config, None, out, endpoint=endpoint_of(endpoint, model="large"))
        with pytest.raises(ValueError, match=r"endpoint is 'http://.* there and 'http"):
            predict(config, None, out, endpoint=endpoint_of(endpoint, url="http://h:1/v1"))
        other = tmp_path / "other.yaml"
        text = config.read_text(encoding="utf-8")
        other.write_text(text.replace("qwen2_5_vl", "qwen2_vl"), encoding="utf-8")
        with pytest.raises(ValueError, match=r"\(run is"):
            predict(other, None, out, endpoint=endpoint)
        assert predict(config, None, out, endpoint=endpoint) == 10
        record = json.loads((tmp_path / "p.jsonl.made_by.json").read_text(encoding="utf-8"))
    assert record["endpoint"] == f"{endpoint.url}/chat/completions"
    assert record["served_model"] == "tiny"


@pytest.mark.parametrize("name", ["paligemma", "t5"])
def test_a_family_without_a_chat_template_is_rejected(tmp_path, name):
    choose(name, FAMILIES, "family", "").make_tiny(tmp_path / "model", seed=0)
    made = small_config(
        tmp_path,
        "predict.max_new_tokens=16",
        "task=arithmetic",
        *data_for("arithmetic", 4, 2),
        f"model={{family: {name}, name: {tmp_path / 'model'}, dtype: float32}}",
        "objective=ce",
    )
    file = tmp_path / "config.yaml"
    file.write_text(made.to_yaml(), encoding="utf-8")
    with pytest.raises(ValueError, match="is not written with a chat template, so no server"):
        predict(
            file, None, tmp_path / "p.jsonl", endpoint=Endpoint(url="http://h:1/v1", model="tiny")
        )


def test_a_model_that_train_creates_is_rejected_before_a_hub_is_asked(tmp_path):
    endpoint = Endpoint(url="http://h:1/v1", model="tiny")
    with pytest.raises(ValueError, match=r"model\.name: tiny is a model that `train`"):
        predict(Path("clock_tiny"), None, tmp_path / "p.jsonl", endpoint=endpoint)


@pytest.mark.parametrize(("cls", "takes_field"), [(Qwen2_5VL, True), (Llava, True), (Llava, False)])
def test_the_image_that_is_sent_has_the_pixels_that_the_family_sees(tmp_path, cls, takes_field):
    """Also of an image that is rotated by its EXIF tag, and of one with transparent pixels."""
    folder = tmp_path / "model"
    cls.make_tiny(folder, seed=0)
    family = cls.load(str(folder), ModelConfig(name=str(folder), dtype="float32"))
    if cls is Llava:  # which is trained with or without a template
        family.tokenizer.chat_template = "<image> {{ messages[0]['content'][1]['text'] }}"
    made = small_config(tmp_path, "task=grounding", "predict.max_new_tokens=16")
    pixels = torch.randint(0, 256, (90, 130, 4), generator=torch.manual_seed(0)).byte()
    image, exif = Image.fromarray(pixels.numpy(), "RGBA"), Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    example = Example(id="1", image=tmp_path / "a.png", prompt="where?", answer=None, where="row 1")
    sent, bodies = [], []

    def answer(body):
        if "add_special_tokens" in body and not takes_field:
            return 400, {"error": {"message": "unknown field"}}
        bodies.append(body)
        sent.append(body["messages"][0]["content"][0]["image_url"]["url"])
        choice = {"finish_reason": "stop", "message": {"content": "there"}}
        return 200, {"choices": [choice]}

    with chat_server(answer, of=lambda body: body) as (url, _):
        endpoint = Endpoint(url=url, model="tiny")
        (found,) = endpoint_answers(endpoint, made, family, [example], None)
    # LLaVA's template lacks the <s> of its prompts, which vLLM leaves out unless it is asked for.
    assert {body.get("add_special_tokens") for body in bodies} == {
        True if cls is Llava and takes_field else None
    }
    kind, _, data = sent[-1].partition(",")
    assert kind == "data:image/png;base64"
    original, decoded = open_image(example), Image.open(io.BytesIO(base64.b64decode(data)))
    assert original.size == (90, 130)
    assert found.frame == family.frame(90, 130)
    for name, tensor in family.images([original]).items():
        assert torch.equal(tensor, family.images([decoded])[name])
    assert decoded.size == (found.frame.view.width_px, found.frame.view.height_px)


@pytest.mark.parametrize("bos", ["{{ bos_token }}", ""])
def test_a_language_model_whose_tokenizer_adds_a_bos_token_is_served(tmp_path, bos):
    """Llama-2's template takes texts alone, and its prompt has the tokens of the template alone."""
    tokenizer = tiny_gpt2_tokenizer()
    begin = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = bos + "[INST] {{ messages[0]['content'].strip() }} [/INST]"
    assert tokenizer("")["input_ids"] == [tokenizer.bos_token_id]
    family = CausalLM(tokenizer, None, ModelConfig(name="llama", family="causal_lm"))
    made = small_config(tmp_path, "task=numbers", "predict.max_new_tokens=16")
    example = Example(id="1", image=None, prompt="3 + 4 =", answer=None, where="row 1")

    def answer(body):  # as vLLM, which adds no token to the text of the template
        text = tokenizer.apply_chat_template(
            body["messages"], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=body.get("add_special_tokens", False))["input_ids"]
        choice = {"finish_reason": "stop", "message": {"content": "7"}}
        return 200, {"choices": [choice], "prompt_token_ids": ids}

    with chat_server(answer, of=lambda body: body) as (url, _):
        (found,) = endpoint_answers(Endpoint(url=url, model="tiny"), made, family, [example], None)
    assert found.text == "7"


def test_a_prompt_has_the_tokens_of_the_processor(tmp_path):
    """Those of InternVL begin and end the features of an image with tokens of their own."""
    Chat.make_tiny(tmp_path / "model", seed=0)
    family = Chat.load(str(tmp_path / "model"), ModelConfig(name=str(tmp_path / "model")))
    made = small_config(tmp_path, "task=grounding", "predict.max_new_tokens=16")
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    example = Example(id="1", image=tmp_path / "a.png", prompt="where?", answer=None, where="row 1")
    content = [{"type": "image", "image": Image.open(example.image)}]
    turn = {"role": "user", "content": [*content, {"type": "text", "text": "where?"}]}
    options = {"chat_template": family.template, "add_generation_prompt": True}
    ids = family.processor.apply_chat_template([turn], tokenize=True, return_dict=True, **options)
    ids = ids["input_ids"][0]
    assert {"<img>", "</img>"} < set(family.tokenizer.convert_ids_to_tokens(ids))
    choice = {"finish_reason": "stop", "message": {"content": "there"}}
    found = {"choices": [choice], "usage": {"prompt_tokens": len(ids)}, "prompt_token_ids": ids}
    with chat_server(lambda body: (200, found), of=lambda body: body) as (url, _):
        endpoint = Endpoint(url=url, model="tiny")
        (answer,) = endpoint_answers(endpoint, made, family, [example], None)
        assert answer.text == "there"
        found["prompt_token_ids"] = ids[::-1]
        with pytest.raises(ValueError, match="of which some differ on the server"):
            list(endpoint_answers(endpoint, made, family, [example], None))


def test_a_server_writes_the_prompt_without_thinking(tmp_path):
    folder = tmp_path / "model"
    Chat.make_tiny(folder, seed=0)
    with (folder / "chat_template.jinja").open("a", encoding="utf-8") as file:
        file.write("{{ '<think>' if enable_thinking | default(true) else '<think></think>' }}")
    family = Chat.load(str(folder), ModelConfig(name=str(folder)))
    made = small_config(tmp_path, "task=numbers", "predict.max_new_tokens=16")
    example = Example(id="1", image=None, prompt="3 + 4 =", answer=None, where="row 1")

    def answer(body):
        turns = [{"role": "user", "content": [{"type": "text", "text": "3 + 4 ="}]}]
        options = body.get("chat_template_kwargs", {})
        text = family.processor.apply_chat_template(turns, add_generation_prompt=True, **options)
        choice = {"finish_reason": "stop", "message": {"content": "7"}}
        return 200, {"choices": [choice], "prompt_token_ids": family.tokenizer(text)["input_ids"]}

    with chat_server(answer, of=lambda body: body) as (url, _):
        (found,) = endpoint_answers(Endpoint(url=url, model="tiny"), made, family, [example], None)
    assert found.text == "7"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--served-model", "m"], "--concurrency, --timeout and --proxy require --endpoint"),
        (["--timeout", "9"], "--concurrency, --timeout and --proxy require --endpoint"),
        (["--endpoint", "http://h/v1"], "--endpoint requires --served-model"),
        (
            ["--endpoint", "http://h", "--served-model", "m", "--timeout", "9" * 18],
            "the timeout of a server is above 0 and at most 1,000,000 seconds, not 1e+18.",
        ),
        (["--endpoint", "h/v1", "--served-model", "m"], "'h/v1' is not the URL of a server"),
        (["--endpoint", "http://a:b@h", "--served-model", "m"], "no user, password or query"),
        (["--endpoint", "http://h", "--served-model", "m"], "for a config, add --out FILE"),
        (["--endpoint", "u", "--served-model", "m", "--batch-size", "2"], "use --concurrency"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(config, capsys, words, message):
    assert cli.main(["predict", "--model", str(config), *words]) == 2
    assert message in capsys.readouterr().err
