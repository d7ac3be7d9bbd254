"""Configs: the schema of the YAML files, their validation, and what ships. Loads no torch."""
