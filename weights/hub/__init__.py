"""From a model's name to its folder: aliases, local folders, downloads into the hub's cache, and uploads.

May import `mlxgen.weights.files` and the runtime, and nothing else of mlxgen.weights.
"""
