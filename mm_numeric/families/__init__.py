"""Model families, which define prompts, image resizing, coordinate format and model loading."""
