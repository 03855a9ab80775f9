"""The decoder, its configuration and its caches: token ids in, logits out.

May import `mlxgen.errors`, `mlxgen.json_file` and `mlxgen.device`, and nothing else of mlxgen.
"""
