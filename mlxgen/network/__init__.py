"""The decoder, its configuration and its caches: token ids in, logits out.

May import `mlxgen.errors` and `mlxgen.device`, and nothing else of mlxgen.
"""
