"""Adapters of PEFT and mlx-lm: finding them, reading them, and merging them into a model's weights.

May import `mlxgen.weights.sources`, `mlxgen.weights.hub`, `mlxgen.weights.files`, the layouts and parameters, and the
runtime.
"""
