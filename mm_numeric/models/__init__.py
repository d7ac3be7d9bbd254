"""Load models, add adapters such as LoRA, set learning rates per module, and export weights."""
