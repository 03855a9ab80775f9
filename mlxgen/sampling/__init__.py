"""Sampling, from logits to a chosen token: a pure function for each rule, and the chooser that applies them.

May import `mlxgen.errors`, `mlxgen.device`, `mlxgen.cpu_exp` and `mlxgen.cpu_operations`, and nothing else of mlxgen.
"""
