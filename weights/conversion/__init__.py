"""A checkpoint becomes a model folder: what is written, in which type, with which tokenizer.

May import every other room of mlxgen.weights, and the runtime.
"""
