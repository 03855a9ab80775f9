"""The decoder, its configuration and its caches: token ids in, logits out.

May import `mlxgen.errors`, `mlxgen.json_file`, `mlxgen.device`, `mlxgen.cpu_exp` and `mlxgen.cpu_operations`, and
nothing else of mlxgen.
"""
