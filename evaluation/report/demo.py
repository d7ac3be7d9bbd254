"""A local web page: the user drops an image on it, and a model answers a question about it."""

import base64
import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime, EmbeddedImage
from mm_numeric.evaluation.report.charts import Axis, Line, axis_around, line_chart, nice_ticks
from mm_numeric.evaluation.report.gallery import data_url
from mm_numeric.evaluation.report.page import render
from mm_numeric.inference.ask import LoadedRun, number_of
from mm_numeric.inference.decision_rules import Candidate
from mm_numeric.io.escaping import plain
from mm_numeric.io.local_server import LocalHandler, local_server
from mm_numeric.io.log import logger

LIMIT_MB = 20
_ASKED = 2000  # maximum number of characters of a question
_LISTED = 6  # maximum number of answers in the table
_SIDE_PX = 1280
_HEADERS = {"Content-Security-Policy": "frame-ancestors 'none'", "Referrer-Policy": "no-referrer"}


def demo_server(run: LoadedRun, port: int) -> ThreadingHTTPServer:
    """Return a local server that sends the page and answers questions about posted images."""
    lock = threading.Lock()  # the model answers one question at a time

    class Handler(LocalHandler):
        def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
            if self.path == "/":
                self.reply(HTTPStatus.OK, "html", demo_page(run), _HEADERS)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:  # noqa: N802  (its name in http.server)
            url, length = urlsplit(self.path), self.headers.get("Content-Length", "")
            if url.path != "/answer":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                if not length.isdecimal() or int(length) > LIMIT_MB * 10**6:
                    raise ValueError(f"the image is larger than {LIMIT_MB} MB; use a smaller one.")
                asked = parse_qs(url.query).get("ask", [""])[0]
                data = self.body(int(length))
                with lock:
                    text = answer_html(run, data, asked)
            except ValueError as error:
                self.close_connection = True
                self.reply(HTTPStatus.BAD_REQUEST, "plain", str(error), _HEADERS)
                return
            except ConnectionError:
                raise
            except Exception as error:  # such as out of GPU memory: a smaller image may fit
                logger.exception("an image could not be answered:")
                reason = f"{type(error).__name__}: {plain(str(error), 300)}"
                message = f"the model failed at this image ({reason}); the terminal has more."
                self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, "plain", message, _HEADERS)
                return
            self.reply(HTTPStatus.OK, "html", text, _HEADERS)

    return local_server(Handler, port)


def demo_page(run: LoadedRun) -> str:
    """Return the page as HTML; its security policy only allows requests to the local server."""
    script = render("demo.js", limit_mb=LIMIT_MB)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    question = ""
    with suppress(ValueError):  # raised if each training row has its own question
        question = run.question()
    task = run.config.task_name.replace("_", " ")
    shown = {"question": plain(question, _ASKED), "task": plain(task), "run": plain(str(run.run))}
    return render("demo.html", script=script, digest=digest, asked=_ASKED, **shown)


def answer_html(run: LoadedRun, image: bytes, asked: str) -> str:
    """Return the answers of a model to a question about an image, as HTML for the page.

    ``asked`` is the question; if it is empty, the question of the training rows is asked. Raises
    ValueError if the image cannot be read, or if the question is too long.
    """
    if len(asked) > _ASKED:
        raise ValueError(f"the question has more than {_ASKED} characters; shorten it.")
    source = EmbeddedImage("image", "that was sent", lambda: image)
    (found,) = run.answer([source], asked.strip() or None, compare_rules=True)
    tiles = [
        {"rule": rule, "answer": own, "image": data_url(found.drawn(rule), _SIDE_PX)}
        for rule, own in found.answers.items()
    ]
    listed = [
        (plain(own.text, 120), f"{100 * own.probability:.1f} %")
        for own in found.candidates[:_LISTED]
    ]
    chart = distribution_chart(found.candidates)
    return render("demo_answer.html", tiles=tiles, listed=listed, chart=chart)


def distribution_chart(candidates: Sequence[Candidate]) -> Markup | None:
    """Draw the probability of each number or time; return None for other answers."""
    numbers = [(number_of(own.answer), own.probability) for own in candidates]
    pairs = sorted((value, p) for value, p in numbers if value is not None)
    if not pairs or len(pairs) < len(numbers):
        return None
    bars = [point for v, p in pairs for point in ((v, 0.0), (v, p), (v, 0.0))]
    highest = max(p for _, p in pairs)
    if isinstance(candidates[0].answer, ClockTime):
        hours = [(float(60 * hour), f"{hour or 12}:00") for hour in range(0, 13, 3)]
        x = Axis(low=0, high=HALF_DAY_MINUTES, ticks=hours, label="time")
    else:
        x = axis_around([value for value, _ in pairs])
    ticks = [(tick, f"{100 * tick:g}%") for tick in nice_ticks(0, highest, 4)]
    y = Axis(low=0, high=1.05 * highest, ticks=ticks)
    line = Line(points=bars, colour="var(--o0)", name="probability")
    text = "Probability of each answer that the model may give."
    return line_chart([line], x, y, description=text, width=480, height=220).svg
