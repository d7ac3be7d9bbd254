"""Compare training losses: fine-tune the same model, first trained with CE, with each of them."""
