"""The text of each token of a tokenizer, as bytes, for automata over the vocabulary."""

import re
from collections.abc import Callable
from typing import Any

from transformers import ByT5Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mm_numeric.families.digits import merges_digits

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_DIGIT = re.compile(rb"[0-9]")
_SPACE = "▁"


def token_texts(tokenizer: Any) -> dict[int, bytes]:
    """Return the bytes that each token adds to a text, by token id.

    Left out are special tokens, and tokens that the tokenizer never makes of a text: several digits
    if it makes one token of each digit, and byte tokens such as ``<0x31>`` if ``1`` is a token. The
    name of an added token, such as ``<loc0012>``, is its text.

    Raises:
        ValueError: If the tokenizer is neither byte-level BPE nor SentencePiece nor ByT5.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items()}
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    decode, single_digits = _decoder(tokenizer), not merges_digits(tokenizer)
    found = {}
    for token, index in vocabulary.items():
        if index in special:
            continue
        if token in added:
            found[index] = token.encode()
            continue
        byte, text = _BYTE.fullmatch(token), decode(token)
        is_spare = byte and _spelled(int(byte[1], 16)) in vocabulary
        is_merged = single_digits and len(text) > 1 and _DIGIT.search(text)
        if text and not is_spare and not is_merged:
            found[index] = text
    return found


def _decoder(tokenizer: Any) -> Callable[[str], bytes]:
    """Return the function that converts a token of the vocabulary to bytes."""
    if isinstance(tokenizer, ByT5Tokenizer):
        return lambda token: token.encode("latin-1")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = _settings(getattr(backend, "decoder", None))
    if '"ByteLevel"' in decoder + _settings(getattr(backend, "pre_tokenizer", None)):
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        return lambda token: (
            bytes([byte_of[character] for character in token])
            if byte_of.keys() >= set(token)
            else token.encode()  # as tokenizers decodes a token that has another character
        )
    if _SPACE in decoder:
        return _piece
    raise ValueError(
        f"predict.constrain: the tokenizer {tokenizer.name_or_path!r} is neither byte-level BPE "
        "nor SentencePiece, so that the text of its tokens is unknown; predict without constrain."
    )


def _settings(part: Any) -> str:
    """Return the settings of a part of a tokenizer as JSON, without those of its vocabulary."""
    return "" if part is None else part.__getstate__().decode()


def _spelled(byte: int) -> str | None:
    """Return the token of an ASCII character that SentencePiece prefers to its byte token."""
    return chr(byte).replace(" ", _SPACE) if byte < 128 else None


def _piece(token: str) -> bytes:
    """Return the bytes of a SentencePiece token."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()
