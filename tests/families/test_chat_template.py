"""Chat templates are rendered as by transformers; a hostile one is one sentence, after seconds."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_chats
from finished_runs import copy_and_enter
from tiny_families import CHAT_TEMPLATE
from transformers.utils.chat_template_utils import (
    _cached_compile_jinja_template,
    render_jinja_template,
)

from mm_numeric.cli import main as cli
from mm_numeric.families import chat_template
from mm_numeric.families.chat_template import default_template, render
from mm_numeric.families.llava import LLAVA_HF, LLAVA_V1
from mm_numeric.families.template_process import compiled
from mm_numeric.families.tiny import _CHAT_TEMPLATE

QWEN2 = Path(__file__).parents[3] / "shared/data/tokenizers/qwen2/tokenizer_config.json"

EVERYTHING = """\
{%- set ns = namespace(first=true, self=1) %}
{{ bos_token }}
    {% for m in messages %}
        {% if loop.index0 > 5 %}{% break %}{% endif %}
        {% if m.role == 'system' %}{% continue %}{% endif %}
{{ m.role | upper }}:{% generation %}{% set kept = 1 %}{{ m.content | tojson }}{% endgeneration %}
{{ dict(a=1, b=[2]) | tojson(indent=2) }} {{ dict.fromkeys('ab') }} {{ kept is defined }}
        {% set ns.first = false %}
    {% endfor %}
{{ ns.first }} {{ ns.self }} {{ strftime_now('%Y') }} {{ tools is none }} {{ documents is none }}
{{ missing }}|{{ 'é' | tojson(ensure_ascii=true) }}
{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('<b>') }}
"""
TEMPLATES = {
    "everything": EVERYTHING,
    "tiny": _CHAT_TEMPLATE,
    "internvl": CHAT_TEMPLATE,
    "llava_hf": LLAVA_HF,
    "llava_v1": LLAVA_V1,
    **{n: own for n, own in vars(tiny_chats).items() if n.endswith("_TEMPLATE")},
}
IMAGE_AND_TEXT = [{"type": "image", "image": Path()}, {"type": "text", "text": " What <b>é</b>? "}]
TURNS = [
    {"role": "user", "content": IMAGE_AND_TEXT},
    {"role": "assistant", "content": [{"type": "text", "text": "7"}]},
]


@pytest.fixture(autouse=True)
def no_text_of_another_test():
    """Let each test ask the program, which a text rendered before would not need."""
    chat_template._rendered.cache_clear()


def both(template, turns, **options):
    """Return the text, or the error, of transformers and of ``render``."""
    variables = {"add_generation_prompt": True, "bos_token": "<s>", **options}
    given = {"messages": turns, "tools": None, "documents": None, **variables}
    found = []
    for function in (
        lambda: render_jinja_template([turns], chat_template=template, **variables)[0][0],
        lambda: render(template, given),
    ):
        try:
            found.append(function())
        except Exception as error:
            found.append("error " + str(error).rpartition(": ")[2])
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_rendered_as_in_transformers(name):
    texts = [{"role": "system", "content": "s"}, {"role": "user", "content": " What?\n"}]
    for turns in (TURNS[:1], TURNS, texts[1:], texts):
        theirs, ours = both(TEMPLATES[name], turns)
        assert ours == theirs


@pytest.mark.skipif(not QWEN2.is_file(), reason="the tokenizer of Qwen2 is not here")
def test_a_published_template_is_rendered_as_in_transformers():
    template = json.loads(QWEN2.read_text(encoding="utf-8"))["chat_template"]
    theirs, ours = both(template, [{"role": "user", "content": "What?"}])
    assert ours == theirs
    assert "What?" in ours


def repeated(body, start):
    return f"{{% set n = namespace(x={start}) %}}{{% for i in range(50) %}}{body}{{% endfor %}}"


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LATE = "it takes more than 0.2 s"
HOSTILE = {
    "loops": (LOOPS, LATE),
    "a power, which Jinja computes when it compiles": ("{{ 10**(10**10) }}", LATE),
    "lists": (repeated("{% set n.x = [n.x, n.x] %}", "1") + "{{ n.x == n.x | list }}{{ n }}", LATE),
    "doubled text": (repeated("{% set n.x = n.x ~ n.x %}", "'a'"), "it needs more than 512 MiB"),
    "a product": ("{{ 'a' * 10**10 }}", "it needs more than 512 MiB of memory"),
    "padding": ("{{ 'a'.center(10**11) }}", "it needs more than 512 MiB of memory"),
    "a long text": ("{{ 'a' * 5000000 }}", "it writes more than 4,194,304 characters"),
    "an endless macro": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "brackets": ("{{ " + "(" * 9999 + ")" * 9999 + " }}", "RecursionError|it makes Python crash"),
    "no template": ("{% for %}", "TemplateSyntaxError: Expected an expression"),
    "an unknown filter": ("{{ a | b }}", "TemplateAssertionError: No filter named 'b'"),
    "text and list": ("{{ 'a' + messages }}", "TypeError: can only concatenate"),
    "missing": ("{{ a.b.c }}", "UndefinedError: 'a' is undefined"),
    "classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError|UndefinedError"),
    "a private name": ("{{ namespace(_Namespace__attrs=1) }}", "SecurityError: a namespace has no"),
    "other messages": ("{{ messages.clear() }}", "SecurityError"),
    "escape sequences": (
        "{{ raise_exception('\x1b]0;owned\x07\x1b[2J\nmm-numeric: all is well') }}",
        "^TemplateError: .*owned",
    ),
    "no text": ("{{ '\\ud800' }}", "UnicodeEncodeError"),
    "a long message": ("{{ raise_exception('a' * 10**7) }}", "TemplateError: a{200,290}…$"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_line(monkeypatch, name):
    template, reason = HOSTILE[name]
    if reason == LATE:
        monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    with pytest.raises(ValueError, match=reason) as error:
        render(template, {"messages": [{"role": "user", "content": "What?"}]})
    assert str(error.value).isprintable()
    monkeypatch.undo()
    assert render("{{ a }}", {"a": "next"}) == "next"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            LOOPS,
            "the chat template of 'run/model' cannot be used for prompts of causal_lm (it takes",
        ),
        ("{{ raise_exception('\x1b[2J') }}", "(TemplateError: \N{REPLACEMENT CHARACTER}[2J); copy"),
        ("{# nothing #}", "(it writes nothing); copy chat_template.jinja from another checkpoint"),
        ({"default": 5}, "the chat template of the checkpoint is 5, not text; correct"),
        ([{"name": "default"}], "tokenizer.json or tokenizer_config.json is damaged ('template')"),
    ],
    ids=["loops", "escape sequences", "nothing", "a number", "a list"],
)
def test_predict_with_a_hostile_template_is_one_sentence(
    finished_runs, tmp_path, monkeypatch, capsys, template, message
):
    copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    if template == LOOPS:
        monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    file = Path("run/model/tokenizer_config.json")
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "chat_template": template}), encoding="utf-8")
    Path("run/predictions.jsonl").unlink()
    assert cli.main(["predict", "--model", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.isprintable()


def test_a_text_is_no_default_template_and_several_have_one():
    assert default_template("") is None
    assert default_template({"tool_use": "a", "default": "b"}) == "b"
    with pytest.raises(ValueError, match="the chat template of the checkpoint is 5, not text"):
        default_template(5)


@pytest.mark.slow
def test_a_program_that_was_ended_is_started_again_and_a_forked_process_has_its_own():
    assert render("{{ a }}", {"a": 1}) == "1"
    own = chat_template._PROGRAMS[os.getpid()]._process
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_render_in_a_fork, args=(sender,))
    process.start()
    process.join()
    assert process.exitcode == 0
    other = receiver.recv()
    assert other != own.pid
    with pytest.raises(ProcessLookupError):  # it was ended, and is no zombie
        os.kill(other, 0)
    assert render("{{ a }}", {"a": 2}) == "2"
    assert chat_template._PROGRAMS[os.getpid()]._process is own
    os.kill(own.pid, signal.SIGKILL)
    assert render("{{ a }}", {"a": 3}) == "3"


def _render_in_a_fork(sender):
    assert render("{{ a }}", {"a": 4}) == "4"
    sender.send(chat_template._PROGRAMS[os.getpid()]._process.pid)


def test_an_interrupted_text_is_not_read_as_the_next_one(monkeypatch):
    """In a notebook, the program outlives the KeyboardInterrupt of a cell."""

    def interrupt(*_):
        raise KeyboardInterrupt

    loop = "{% for a in range(900) %}{% for b in range(900) %}{% endfor %}{% endfor %}{{ a }}"
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert render("{{ a }}", {"a": 1}) == "1"
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(KeyboardInterrupt):
            render(loop, {"a": "interrupted"})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert render("{{ a }}", {"a": 2}) == "2"


@pytest.mark.slow
def test_a_large_limit_of_the_stack_is_no_error():
    """The thread that limits the time has a stack, which counts to the memory."""
    code = (
        "import resource; limit = resource.getrlimit(resource.RLIMIT_STACK)[1]; "
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, limit)); "
        "from mm_numeric.families.chat_template import render; print(render('{{ a }}', {'a': 1}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"1\n"


def test_the_environment_has_the_names_of_that_of_transformers():
    theirs, ours = (
        function("").environment for function in (_cached_compile_jinja_template, compiled)
    )
    for kind in ("globals", "filters", "tests"):
        assert getattr(ours, kind).keys() == getattr(theirs, kind).keys()
    tags = [
        {tag for own in environment.extensions.values() for tag in own.tags}
        for environment in (theirs, ours)
    ]
    assert tags[0] == tags[1]
    for option in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape"):
        assert getattr(ours, option) == getattr(theirs, option)
