"""The prompts that models were trained with, as options of the tasks.

The prompts are not in the modules of the families, which import transformers: reading a config
must not import it.
"""

from collections.abc import Mapping

_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "NAME", "description": "DESCRIPTION", "parameters": \
{"properties": {"action": {"description": "The action to perform. The available actions are:\\n* \
`CLICK`: Click at a specified (x, y) coordinate on the screen.\\n* `terminate`: Terminate the \
current task and report its completion status.", "enum": ["CLICK", "terminate"], "type": \
"string"}, "coordinate": {"description": "(x, y): The x (from the left edge) and y (from the top \
edge) coordinates to click at.", "type": "array"}, "status": {"description": "The status of the \
task.", "type": "string", "enum": ["success", "failure"]}}, "required": ["action"], "type": \
"object"}}}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>

{phrase}"""
"""Prompt for tool calls from the cookbooks of Qwen2.5-VL and Qwen3-VL. It lists only the actions
that answers use. In the cookbooks, all but the last line is the system prompt."""


def _tool(name: str, click: str, description: str) -> str:
    return _TOOLS.replace("NAME", name).replace("CLICK", click).replace("DESCRIPTION", description)


_UI_TARS = (
    "You are a GUI agent. You are given a task and your action history, with screenshots. You need "
    "to perform the next action to complete the task. \n\n## Output Format\n\nAction: ...\n\n\n"
    "## Action Space\n{action}\ncall_user()\n\n## User Instruction\n{{phrase}}"
)
"""Prompt of bytedance/UI-TARS, codes/ui_tars/prompt.py (GROUNDING_DOUBAO), with ``call_user``."""

_QWEN_OCR = {
    "prompt": "Spotting all the text in the image with word-level, and output in JSON format as "
    "[{'bbox_2d': [x1, y1, x2, y2], 'text_content': 'text'}, ...].",
    "shape": "box",
}
"""Prompt of QwenLM/Qwen3-VL, cookbooks/ocr.ipynb, which names lines or words."""

FAMILY_PROMPTS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "paligemma": {
        "detection": {"prompt": "detect {classes}", "between_classes": " ; "},
        "grounding": {"prompt": "detect {phrase}"},
        "text_detection": {"prompt": "detect text"},
        "text_spotting": {"prompt": "ocr", "shape": "box"},
    },
    "llava": {
        "grounding": {
            "prompt": "Please provide the bounding box coordinate of the region this sentence "
            "describes: {phrase}"
        }
    },
    "qwen2_5_vl": {
        "detection": {
            "prompt": "Locate every item from the category list in the image and output the "
            "coordinates in JSON format. The category set includes {classes}."
        },
        "grounding": {"prompt": "Locate {phrase}, output its bbox coordinates using JSON format."},
        "text_spotting": _QWEN_OCR,
    },
    "qwen3_vl": {
        "detection": {
            "prompt": "locate every instance that belongs to the following categories: "
            '"{classes}". Report bbox coordinates in JSON format.'
        },
        "grounding": {"prompt": "Locate {phrase}, output its bbox coordinates in JSON format."},
        "text_spotting": _QWEN_OCR,
    },
    "florence2": {
        "detection": {"prompt": "<OPEN_VOCABULARY_DETECTION>{classes}"},
        "grounding": {"prompt": "<CAPTION_TO_PHRASE_GROUNDING>{phrase}"},
        "text_spotting": {"prompt": "<OCR_WITH_REGION>"},
    },
}
"""``FAMILY_PROMPTS[family][task]`` are default options of the task, such as the prompt that the
family's authors used. Options that a config sets have priority."""


def _both(prompt: str) -> Mapping[str, Mapping[str, str]]:
    return {task: {"prompt": prompt} for task in ("click", "pointing")}


FORMAT_PROMPTS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "computer_use": _both(
        _tool(
            "computer_use",
            "left_click",
            "Use a mouse and keyboard to interact with a computer, and take screenshots.",
        )
    ),
    "mobile_use": _both(
        _tool(
            "mobile_use",
            "click",
            "Use a touchscreen to interact with a mobile device, and take screenshots.",
        )
    ),
    # Aguvis: xlang-ai/aguvis, and models/aguvis.py of forks of ScreenSpot-Pro-GUI-Grounding
    "pyautogui": _both(
        "Please complete the following tasks by clicking using `pyautogui.click`:\n{phrase}"
    ),
    "ui_tars": _both(_UI_TARS.format(action="click(start_box='<|box_start|>(x1,y1)<|box_end|>')")),
    "ui_tars_point": _both(_UI_TARS.format(action="click(point='<point>x1 y1</point>')")),
    "molmo": _both("Point to {phrase}"),
    # IDEA-Research/Rex-Omni, rex_omni/tasks.py
    "rex_omni": {
        "click": {"prompt": 'Point to element "{phrase}".'},
        "pointing": {"prompt": "Point to {phrase}."},
        "detection": {
            "prompt": "Detect {classes}. Output the bounding box coordinates in [x0, y0, x1, y1] "
            "format."
        },
        "grounding": {
            "prompt": "Detect {phrase}. Output the bounding box coordinates in [x0, y0, x1, y1] "
            "format."
        },
    },
}
"""``FORMAT_PROMPTS[format][task]`` are default options of the task for a text format of
``model.coordinates``. They have priority over ``FAMILY_PROMPTS``."""
