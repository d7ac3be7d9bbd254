"""predict with any chat API: several answers of texts alone, and the tree of their digits."""

import base64
import io
import json
import random
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from chat_server import chat_server
from documents import blocks
from PIL import Image
from result_files import write_lines
from text_server import TextServer

from mm_numeric.cli import main as cli
from mm_numeric.config.reader import read_config
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.inference.endpoint import ENDPOINT_KEY
from mm_numeric.models.loading import load_family
from mm_numeric.settings import with_setting

pytestmark = pytest.mark.slow

ROWS = 24


@pytest.fixture(autouse=True)
def no_key_and_no_proxy(monkeypatch):
    for name in (ENDPOINT_KEY, "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def image(folder, i):
    """Save an image whose colour tells the server which question it belongs to."""
    Image.new("RGB", (40, 40), (i, 0, 0)).save(folder / f"{i}.png")
    return {"id": str(i), "image": f"{i}.png"}


def clocks(folder, rng, i):
    minute = rng.randrange(720)
    around = [(minute + rng.randrange(-9, 10)) % 720 for _ in range(5)]
    texts = [f"{m // 60 or 12}:{m % 60:02d}" for m in around]
    return {**image(folder, i), "time": texts[0]}, texts, ("Which time?", (i, 0, 0))


def numbers(_, rng, i):
    texts = [str(rng.randrange(-120, 120)) for _ in range(4)]
    texts += texts[:1]
    return {"id": str(i), "question": f"{i}?", "answer": texts[0]}, texts, (f"{i}?", None)


def boxes(folder, rng, i):
    corners = [[*rng.sample(range(400), 2), *rng.sample(range(500, 999), 2)] for _ in range(5)]
    texts = [str(corner) for corner in corners]
    row = {**image(folder, i), "phrase": "it", "box": [4, 4, 30, 30]}
    return row, texts, ("Where is it?", (i, 0, 0))


TASKS = {
    "clock": (clocks, {"prompt": "Which time?"}, "median"),
    "numbers": (numbers, {}, "median"),
    "grounding": (boxes, {"prompt": "Where is {phrase}?"}, "mbr"),
}


def made(folder, task, count=ROWS, seed=0):
    """Write rows and a config for a model on a server; return its texts of each question."""
    make, options, _ = TASKS[task]
    rng, texts, rows = random.Random(seed), {}, []
    for i in range(count):
        row, own, question = make(folder, rng, i)
        rows.append(row)
        texts[question] = own
    write_lines(folder / "rows.jsonl", rows)
    config = {
        "task": {"name": task, **options},
        "data": {"test": {"path": str(folder / "rows.jsonl")}},
        "model": {"family": "api", "name": "gpt", "coordinates": "relative_1000"},
    }
    (folder / "api.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return texts


def predicted(folder, server, *more):
    """Answer the rows with a server; return the rows of the predictions file, and the requests."""
    out = folder / f"{len(list(folder.iterdir()))}.jsonl"
    with chat_server(server, of=lambda body: body) as (url, requests):
        words = ["predict", "--model", str(folder / "api.yaml"), "--endpoint", url]
        words += ["--served-model", "gpt", "--max-new-tokens", "40", "--concurrency", "2"]
        assert cli.main([*words, "--out", str(out), *more]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()], requests


WAYS = {
    "n": ({"can": ["n"]}, "answers for decoding: 5 drawn in one request (n)"),
    "top_logprobs": ({"can": ["n", "top_logprobs"]}, "from the tree of top_logprobs; 5 drawn in"),
    "ignores everything": ({}, "answers for decoding: 5 drawn in 5 requests, with seeds"),
    "rejects everything": (
        {"rejects": ["n", "seed", "top_k", "min_p", "logprobs", "top_logprobs", "regex"]},
        "answers for decoding: 5 drawn in 5 requests, without seeds",
    ),
}


@pytest.mark.parametrize("task", ["clock", "grounding"])  # of numbers, test_several_texts
def test_each_way_has_the_answers_of_decode(tmp_path, capsys, task):
    """Five drawn texts of each row give what ``decode`` makes of a file with these texts."""
    texts, rule = made(tmp_path, task), TASKS[task][2]
    lines = [{"id": str(i), "texts": own} for i, own in enumerate(texts.values())]
    path = write_lines(tmp_path / "answers.jsonl", lines)
    rows, frame = str(tmp_path / "rows.jsonl"), ["--frame", "relative_1000"]
    options = [f"prompt={TASKS[task][1]['prompt']}"] if "prompt" in TASKS[task][1] else []
    words = ["decode", str(path), "--rows", rows, "--task", task, "--rule", rule, *frame]
    words += [word for option in options for word in ("--option", option)]
    assert cli.main(words) == 0
    decoded = [json.loads(line) for line in path.with_suffix(f".{rule}.jsonl").open()]
    for way, (abilities, reported) in WAYS.items():
        server = TextServer(texts, **abilities)
        found, _ = predicted(tmp_path, server, "--samples", "5", "--decode", rule)
        assert (reported in capsys.readouterr().err) != (way == "top_logprobs" and rule == "mbr")
        for own, expected in zip(found, decoded, strict=True):
            for name in ("texts", "parsed"):  # of the file alone
                expected["decode"].pop(name, None)
            seen = [
                sum(row["decode"][n] or 0 for n in ("covered", "drawn")) for row in (own, expected)
            ]
            assert seen[0] == pytest.approx(seen[1], abs=2e-6)
            confidence = expected["decode"]["confidence"]
            assert own["decode"]["confidence"] == pytest.approx(confidence, abs=2e-6)
            same = ("id", "text", "parsed", "target", "prompt", "task", "frame", "reason")
            assert [own[name] for name in same] == [expected[name] for name in same], way
            assert own["decode"]["interval"] == expected["decode"]["interval"]


def test_the_tree_has_the_exact_probabilities_of_the_model(tmp_path):
    """With the greedy answer alone, and with more answers of a flat distribution."""
    texts = made(tmp_path, "clock", 6)
    rng = random.Random(1)
    for question in texts:
        peak = rng.randrange(720)
        around = [(peak + round(rng.gauss(0, 6))) % 720 for _ in range(300)]
        texts[question] = [f"{m // 60 or 12}:{m % 60:02d}" for m in around]
    covered = {}
    for count in (0, 3, 30):
        more = ["--samples", str(count)] if count else []
        server = TextServer(texts, can=["n", "top_logprobs"])
        found, _ = predicted(tmp_path, server, "--decode", "median", *more)
        covered[count] = [row["decode"]["covered"] for row in found]
    known = [
        sum(text[:-1] == row["greedy"][:-1] for text in own) / 300  # all ten last digits
        for row, own in zip(found, texts.values(), strict=True)
    ]
    assert covered[0] == pytest.approx(known, abs=1e-6)
    assert all(a <= b <= c <= 1 for a, b, c in zip(*covered.values(), strict=True))
    assert max(covered[0]) < 0.9 < 0.97 < min(covered[30])


def test_an_answer_that_is_no_number_alone_is_drawn(tmp_path):
    texts = made(tmp_path, "numbers", 2)
    for own in texts.values():
        own[:] = [f"It is {text}." for text in own]
    found, _ = predicted(
        tmp_path, TextServer(texts, can=["top_logprobs"]), "--samples", "5", "--decode", "median"
    )
    assert [row["decode"]["drawn"] for row in found] == [1.0, 1.0]
    assert [row["decode"]["candidates"] for row in found] == [len(set(o)) for o in texts.values()]


def test_a_server_of_single_texts_needs_samples(tmp_path, capsys):
    texts = made(tmp_path, "numbers", 2)
    with chat_server(TextServer(texts), of=lambda body: body) as (url, _):
        words = ["predict", "--model", str(tmp_path / "api.yaml"), "--endpoint", url]
        words += ["--served-model", "gpt", "--max-new-tokens", "9", "--decode", "median"]
        assert cli.main([*words, "--out", str(tmp_path / "p.jsonl")]) == 2
    assert "returns no top_logprobs, so that answers cannot be" in capsys.readouterr().err


def test_fewer_likely_tokens_are_asked_for_if_the_server_returns_few(tmp_path, capsys):
    texts = made(tmp_path, "clock", 2)
    server = TextServer(texts, can=["top_logprobs"])

    def few(body):
        if body.get("top_logprobs", 0) > 5:
            return 400, {"error": {"message": "top_logprobs must be at most 5"}}
        return server(body)

    found, requests = predicted(tmp_path, few, "--decode", "median")
    assert requests[-1][2]["top_logprobs"] == 5
    assert all(0 < row["decode"]["covered"] <= 1 for row in found)
    assert "top_logprobs: returned" in capsys.readouterr().err


def test_a_token_without_likely_tokens_leaves_the_others_in_the_tree(tmp_path):
    texts = made(tmp_path, "clock", 2)
    server = TextServer(texts, can=["top_logprobs"])

    def without_last(body):
        code, reply = server(body)
        for choice in reply["choices"] if body["max_tokens"] > 1 else ():
            choice.get("logprobs", {"content": [{}]})["content"][-1].pop("top_logprobs", None)
        return code, reply

    found, _ = predicted(tmp_path, without_last, "--decode", "median")
    assert all(0 < row["decode"]["covered"] <= 1 for row in found)


def test_a_server_that_fails_at_several_answers_is_asked_for_each(tmp_path):
    texts = made(tmp_path, "numbers", 2)
    server = TextServer(texts)

    def failing(body):
        return (500, b"") if body.get("n", 1) > 1 else server(body)

    found, _ = predicted(tmp_path, failing, "--samples", "5", "--decode", "median")
    assert [row["decode"]["drawn"] for row in found] == [1.0, 1.0]


def test_there_are_no_training_rows_to_answer(tmp_path, capsys):
    made(tmp_path, "numbers", 2)
    words = ["--endpoint", "http://h/v1", "--served-model", "m", "--out", str(tmp_path / "p.jsonl")]
    command = ["predict", "--model", str(tmp_path / "api.yaml"), "--training-rows", *words]
    assert cli.main(command) == 2
    assert "--training-rows: the config has no data.train" in capsys.readouterr().err


def test_each_drawn_answer_has_a_seed_of_its_own(tmp_path):
    texts = made(tmp_path, "numbers", 2)
    _, requests = predicted(tmp_path, TextServer(texts), "--samples", "5", "--decode", "median")
    _, again = predicted(tmp_path, TextServer(texts), "--samples", "5", "--decode", "median")
    seeds = [body["seed"] for *_, body in requests if body.get("seed")]
    assert len(set(seeds)) == len(seeds) == 10
    assert sorted(seeds) == sorted(body["seed"] for *_, body in again if body.get("seed"))


@pytest.mark.parametrize("rejects", [["max_tokens"], ["max_tokens", "temperature"]])
def test_a_server_that_knows_other_names_is_asked_with_these(tmp_path, capsys, rejects):
    """Models of OpenAI that reason accept no max_tokens, and the newest no temperature."""

    texts = made(tmp_path, "numbers", 2)
    server = TextServer(texts)

    def renamed(body):
        if unknown := set(body) & set(rejects):
            return 400, {"error": {"message": f"unsupported parameters {sorted(unknown)}"}}
        return server({**body, "max_tokens": body["max_completion_tokens"]})

    found, requests = predicted(tmp_path, renamed)
    assert all("max_tokens" not in body for *_, body in requests[2:])
    assert [row["text"] in own for row, own in zip(found, texts.values(), strict=True)] == [1, 1]
    assert ("accepts no temperature: its answers are" in capsys.readouterr().err) == (
        "temperature" in rejects
    )


def test_an_image_is_sent_as_it_is_unless_coordinates_are_pixels_of_the_resized_one(tmp_path):
    texts = made(tmp_path, "grounding", 1)
    sizes = {}

    class Seen(TextServer):
        def __call__(self, body):
            url = body["messages"][0]["content"][0]["image_url"]["url"]
            data = base64.b64decode(url.partition(",")[2])
            sizes[coordinates] = Image.open(io.BytesIO(data)).size
            return super().__call__(body)

    for coordinates in ("relative_1000", "pixels_original", "llava", "qwen2_5_vl"):
        change = f"model.coordinates={coordinates}"
        path = tmp_path / "api.yaml"
        config = read_config(path, [change])
        path.write_text(config.to_yaml(), encoding="utf-8")
        (row,), _ = predicted(tmp_path, Seen(texts))
        assert row["frame"]["coordinates"] == asdict(COORDINATES[coordinates])
        assert row["frame"]["width_px"] == 40
    assert sizes == {
        "relative_1000": (40, 40), "pixels_original": (40, 40), "llava": (40, 40),
        "qwen2_5_vl": (56, 56),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.coordinates": None}, "model.coordinates: answers of the task 'grounding' are coo"),
        ({"compare": {}}, "compare: a model on a server (model.family: api) is not trained; rem"),
        ({"data.test": None}, "data.test"),
        ({"model.family": "apy", "trainer": {"output_dir": "r"}}, "Did you mean 'api'?"),
        ({"model.family": "chat"}, "the setting 'trainer' is missing"),
        ({"model.family": "chat", "trainer": {"output_dir": "r"}}, "data.train: name at least one"),
    ],
)
def test_a_wrong_config_is_one_sentence(tmp_path, capsys, change, message):
    made(tmp_path, "grounding", 1)
    path = tmp_path / "api.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, value in change.items():
        config = with_setting(config, name, value, name)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert cli.main(["check", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_a_model_on_a_server_is_checked_and_not_trained(tmp_path, capsys):
    made(tmp_path, "grounding", 1)
    path = str(tmp_path / "api.yaml")
    assert cli.main(["check", path]) == 0
    (tmp_path / "full.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert read_config(tmp_path / "full.yaml").to_dict() == read_config(path).to_dict()
    for command in ("train", "check-data", "compare"):
        assert cli.main([command, path]) == 2
        assert "\n" not in capsys.readouterr().err.strip()
    image_size = ["model.image_size={min_pixels: 3136}"]
    config = read_config(path, image_size)
    with pytest.raises(ValueError, match="do not depend on the size of a resized image; remove"):
        load_family(config, "gpt")


def test_the_quickstart_works_as_it_is_written(tmp_path, monkeypatch, capsys):
    page = "docs/quickstarts/any-model.md"
    monkeypatch.chdir(tmp_path)
    config, row, texts = (
        yaml.safe_load(text) for kind in ("yaml", "json") for text in blocks(page, kind)
    )
    Path("api.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    row |= image(tmp_path, 1)
    write_lines(Path("rows.jsonl"), [row])
    write_lines(Path("sampled.jsonl"), [texts])
    server = TextServer({(config["task"]["prompt"], (1, 0, 0)): texts["texts"]})
    with chat_server(server, of=lambda body: body) as (url, _):
        for block in blocks(page, "sh"):
            text = block.replace("\\\n", " ").replace("http://localhost:8000/v1", url)
            for command in text.splitlines():
                program, *words = shlex.split(command)
                assert program == "export" or cli.main(words) == 0, command
    said = capsys.readouterr().out
    assert said.count("1 row, task clock") == 2
    one, other = (
        json.loads(Path(f"{name}.jsonl").read_text()) for name in ("answers", "sampled.median")
    )
    assert one["text"] == other["text"] == "7:05"
    assert one["decode"]["confidence"] == other["decode"]["confidence"] == 0.8
    assert one["decode"]["interval"] == other["decode"]["interval"] == ["1:35", "7:08"]
