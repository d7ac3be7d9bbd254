"""Read and validate YAML configs, and list the shipped configs. Does not import torch."""
