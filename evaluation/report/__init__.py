"""The HTML and Markdown report of a comparison."""
