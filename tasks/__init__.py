"""Tasks, which read dataset rows, write prompts and answers, and parse text, without torch."""

if __name__ != "mm_numeric.tasks":
    raise ImportError("import mm_numeric.tasks: a bare `import tasks` loads a second copy of it.")
