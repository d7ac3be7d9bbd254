"""Other ways to make a language model output numbers, to compare objectives with.

A baseline wraps a family: it changes how numbers are read and written, which modules are added to
the model, and which loss is used. Trainer, predict, score and compare stay the same.
"""
