"""Model folders on disk: which files they consist of, reading and writing safetensors, replacing a folder as a whole.

May import the runtime, and nothing else of mlxgen.weights.
"""
