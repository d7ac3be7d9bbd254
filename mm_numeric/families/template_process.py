"""A program that renders chat templates with limits of time and memory.

``chat_template`` starts it. The argument is the import path, as JSON. Each line of standard input
is a request, and the program writes one line with the answer.

The Jinja environment, filters and global names are those of transformers 5.23
(``utils/chat_template_utils.py``). transformers itself would take seconds to import.
"""

import faulthandler
import json
import signal
import sys
import threading
from datetime import datetime
from functools import lru_cache
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 512 << 20
"""Maximum size of this process in bytes, on Linux."""


class Generation(Extension):
    """The tag ``generation``, which marks the assistant's text. The text is written unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Any) -> Any:
        return caller()


class TemplateNamespace(Namespace):
    """A Jinja namespace that rejects names which begin with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        super().__init__({_checked(name): value for name, value in attributes.items()})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(_checked(name), value)


class TemplateDict:
    """The function ``dict`` for templates, which hides the attributes of the class ``dict``."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a dict."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dict with one value for all keys."""
        return dict.fromkeys(*args)


def _checked(name: Any) -> Any:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")
    return name


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002
    return datetime.now().strftime(format)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache
def compiled(template: str) -> Template:
    """Compile a chat template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": TemplateDict(),
        "namespace": TemplateNamespace,
    }
    return environment.from_string(template)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return the rendered text, or the reason why rendering failed."""
    try:
        text = compiled(request["template"]).render(**request["variables"])
        text.encode()  # a lone surrogate has no token
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    if len(text) > request["characters"]:
        return {"error": f"it writes more than {request['characters']:,} characters"}
    return {"text": text}


def main() -> None:
    """Answer requests until the standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass  # not on Windows and macOS, and not above a lower limit
    # The thread of faulthandler needs a stack: its default size, `ulimit -s`, may exceed MEMORY.
    threading.stack_size(1 << 20)
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        request = json.loads(line)
        # This ends the process after the time limit, even during a long C function.
        faulthandler.dump_traceback_later(request["seconds"], exit=True)
        found = json.dumps(answer(request))
        faulthandler.cancel_dump_traceback_later()
        print(found, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
