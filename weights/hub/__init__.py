"""Models by name: aliases, the hub's files in its cache, download and upload.

May import `mlxgen.weights.files` and the runtime, and nothing else of mlxgen.weights.
"""
