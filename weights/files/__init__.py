"""Files on disk, read and written safely: safetensors headers and data, and folders that are replaced whole.

May import the runtime, and nothing else of mlxgen.weights.
"""
