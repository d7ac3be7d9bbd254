"""The trainer, its callbacks, and integrations with other trainers."""
