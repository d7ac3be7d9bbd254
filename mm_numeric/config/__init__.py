"""Schema and reader of YAML configs, and the names of shipped ones. Does not import torch."""
