"""The command ``check-data``: find problems in the data of a config before training."""
