"""Checkpoints of other programs: what a file or folder is, and its tensors under names that the layouts know.

May import `mlxgen.weights.files`, `mlxgen.weights.hub`, the layouts and parameters, and the runtime.
"""
