"""The check of the training data before a run: findings, text and HTML page."""
