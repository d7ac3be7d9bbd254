"""Train several objectives from one warm start and compare them."""
