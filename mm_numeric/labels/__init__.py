"""The labels of a data set: their errors, estimated from a second labelling."""
