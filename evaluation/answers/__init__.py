"""Read the answers to score: predictions files, and files of other tools."""
