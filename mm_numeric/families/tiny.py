"""The tokenizer of the tiny Qwen models, created from code so that everything runs offline."""

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

# The special tokens of Qwen, in the order of their ids.
_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_WORDS = ("user", "assistant", "What", "Ġtime", "Ġis", "Ġit", "Locate")
# Words of rendered scenes: one token each, like in any pretrained tokenizer.
_PHRASES = (
    "the", "Ġthe", "Ġat", "Ġred", "Ġgreen", "Ġblue", "Ġyellow", "Ġpurple", "Ġwhite", "Ġcircle",
    "Ġsquare", "Ġtriangle", "Ġlarge", "Ġsmall", "Ġleft", "Ġright", "Ġtop", "Ġbottom", "Ġshapes",
    "red", "green", "blue", "yellow", "purple", "white",
)  # fmt: skip
# Parts of boxes: `[{"bbox_2d": [12, 3, 40, 51], "label": "cat"}]` and `(12,3),(40,51)`.
_PUNCTUATION = ('[{"', "bbox", '":', "Ġ[", "],", 'Ġ"', "label", '"}', "]}]", "),(")

# Qwen2-VL's template without its system prompt, which would triple the length of a question.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_qwen2_tokenizer() -> Qwen2Tokenizer:
    """Return a byte-level tokenizer that splits text like Qwen2's, with single digits.

    Its tokens are the 256 bytes, the prefixes of a few words, and Qwen's special tokens.
    """
    tokens = sorted(ByteLevel.alphabet())
    merges = []
    for word in _WORDS + _PHRASES + _PUNCTUATION:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        additional_special_tokens=list(_SPECIAL_TOKENS),
        chat_template=_CHAT_TEMPLATE,
    )
    tokenizer.eos_token = "<|im_end|>"  # set later, so that <|endoftext|> keeps the lower id
    return tokenizer
