"""Tasks: rows in; prompts, answers and parsers out. Loads no torch."""

if __name__ != "mm_numeric.tasks":
    raise ImportError("import mm_numeric.tasks: a bare `import tasks` loads a second copy of it.")
