"""Checkpoints of any program: what a file or folder is, and its tensors as lazy arrays.

May import `mlxgen.weights.files`, `mlxgen.weights.hub`, and the runtime.
"""
