"""Train several objectives from the same warm start (a model trained with CE), and compare them."""
