"""Tasks: classes that read dataset rows, write prompts and parse answers, without using torch."""

if __name__ != "mm_numeric.tasks":
    raise ImportError("import mm_numeric.tasks: a bare `import tasks` loads a second copy of it.")
