"""Single-digit tokenisation for any tokenizer (``model.digits: single``).

GPT-2, Llama-3 and T5 have tokens for ``123``, ``Ġ42`` and ``3.5``. To get one token per digit, a
step that isolates each ASCII digit is added at the end of the pre-tokenizer. (At the start, it
would change how GPT-2 splits white space before a number.) Text without digits keeps its tokens.
``tokenizers.pre_tokenizers.Digits`` cannot be used, because it also isolates ``²``. In GPT-2's
vocabulary, ``²`` is not a digit but represents the byte 0xB2.
"""

import re
import tempfile
from typing import Any

from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mm_numeric.families.model_files import saved_frame, without_frame

_DIGITS = "0123456789"
_DIGIT = re.compile("[0-9]")
_NAMED = re.compile(r"<.+>", re.DOTALL)  # <0x31>, <extra_id_7>: names of tokens, not text
_SPACE_MARKS = str.maketrans("▁Ġ", "  ")


def with_digits(tokenizer: Any, digits: str | None, source: str, revision: str = "main") -> Any:
    """Return a tokenizer that follows the setting ``model.digits``: ``single``, ``merged`` or None.

    ``single``: a tokenizer with one token per digit. ``merged``: the given tokenizer; ValueError is
    raised if it has no tokens of several digits. None: the given tokenizer. ``source`` is the
    checkpoint's folder or hub name.
    """
    if digits is None:
        return tokenizer
    merges = merges_digits(tokenizer)
    if digits == "merged":
        if not merges:
            raise ValueError(
                f"model.digits: merged needs tokens of several digits, and the tokenizer of "
                f"{source!r} has none; remove model.digits, or start from another checkpoint."
            )
        return tokenizer
    vocabulary = tokenizer.get_vocab()
    missing = [digit for digit in _DIGITS if digit not in vocabulary]
    if missing:
        raise ValueError(
            f"model.digits: the tokenizer of {source!r} has no token for {', '.join(missing)} "
            "alone; remove model.digits."
        )
    if not merges:
        return tokenizer
    if saved_frame(source, revision):
        raise ValueError(
            f"model.digits: the model in {source} was trained with digits merged; remove "
            f"model.digits, or {without_frame(source)} to train it for single digits."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"model.digits: single needs a tokenizer of the tokenizers library, and {source!r} has "
            f"a {type(tokenizer).__name__}; remove model.digits."
        )
    return _with_single_digits(tokenizer)


def merges_digits(tokenizer: Any) -> bool:
    """Return True if a tokenizer produces tokens like ``123`` or ``Ġ4``, not only single digits.

    A tokenizer may have such tokens in its vocabulary but never produce them. To find out, the text
    of every such token is tokenised.
    """
    special = set(tokenizer.all_special_ids)
    joined = {
        index: token.translate(_SPACE_MARKS)
        for token, index in tokenizer.get_vocab().items()
        if len(token) > 1
        and _DIGIT.search(token)
        and index not in special
        and not _NAMED.fullmatch(token)
    }
    if not joined:
        return False
    written = tokenizer(list(joined.values()), add_special_tokens=False)["input_ids"]
    return any(index in joined for ids in written for index in ids)


def _with_single_digits(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer, with the same vocabulary, that splits numbers into digits.

    The copy is a PreTrainedTokenizerFast, because GPT2Tokenizer and T5Tokenizer (transformers 5.23)
    ignore the pre-tokenizer in tokenizer.json.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        single = PreTrainedTokenizerFast.from_pretrained(folder)
    single.name_or_path = tokenizer.name_or_path
    backend = single.backend_tokenizer
    step = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    before = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, step])
    return single
