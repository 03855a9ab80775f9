"""Converting a checkpoint to a model folder: what is written, in which type, with which tokenizer and model card.

May import everything else of mlxgen.weights, and the runtime.
"""
