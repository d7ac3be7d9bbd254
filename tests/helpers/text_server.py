"""A chat API that returns texts alone, with the abilities that a test gives it."""

import base64
import io
import math
from collections import Counter, defaultdict

from PIL import Image


def question_of(body):
    """Return the text of a question, and the first pixel of its image."""
    content = body["messages"][0]["content"]
    if isinstance(content, str):
        return content, None
    url = content[0]["image_url"]["url"]
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return content[-1]["text"], image.getpixel((0, 0))


class TextServer:
    """Answers each question with texts, whose shares are the distribution of its model.

    ``texts`` maps a question (``question_of``) to its texts. Answers that are drawn are these texts
    one after another; greedy ones take the most frequent character at each place. The tokens are
    characters. ``can`` has the names of the request fields that the server knows: others are
    ignored, or rejected if they are in ``rejects``.
    """

    def __init__(self, texts, can=(), rejects=()):
        self.texts, self.can, self.rejects = texts, set(can), set(rejects)
        self.drawn = defaultdict(int)

    def __call__(self, body):
        if unknown := set(body) & self.rejects:
            return 400, {"error": {"message": f"unknown fields {sorted(unknown)}"}}
        texts = self.texts[question_of(body)]
        if body.get("temperature") == 0.0:
            chosen = [self.greedy(texts)]
        else:
            chosen = [self.draw(texts) for _ in range(body.get("n", 1) if "n" in self.can else 1)]
        choices = [self.choice(texts, text, body) for text in chosen]
        return 200, {"choices": choices}

    def draw(self, texts):
        self.drawn[id(texts)] += 1
        return texts[(self.drawn[id(texts)] - 1) % len(texts)]

    def choice(self, texts, text, body):
        length = body["max_tokens"]
        complete = len(text) <= length
        found = {
            "message": {"role": "assistant", "content": text[:length]},
            "finish_reason": "stop" if complete else "length",
        }
        if body.get("top_logprobs") and "top_logprobs" in self.can:
            entries = []
            for i, character in enumerate(text[:length]):
                logs = {token: math.log(p) for token, p in following(texts, text[:i]).items()}
                top = [{"token": token, "logprob": value} for token, value in logs.items()]
                entry = {"token": character, "logprob": logs[character], "top_logprobs": top}
                entries.append(entry)
            found["logprobs"] = {"content": entries}
        return found

    def greedy(self, texts):
        text = ""
        while True:
            probs = following(texts, text)
            likeliest = max(sorted(probs), key=lambda token: probs[token])
            if likeliest == END:
                return text
            text += likeliest


END = "<|im_end|>"


def following(texts, beginning):
    """Return the probability of each character after a beginning of texts, and of their end."""
    after = [text[len(beginning) :][:1] for text in texts if text.startswith(beginning)]
    return {token or END: n / len(after) for token, n in Counter(after).items()}
