"""Sampling, from logits to a chosen token: a pure function for each rule, and the chooser that applies them.

May import `mlxgen.errors`, `mlxgen.device` and `mlxgen.cpu_exp`, and nothing else of mlxgen.
"""
