"""From logits to a chosen token: pure functions for each rule, and the chooser that applies a request's rules.

May import `mlxgen.errors`, and nothing else of mlxgen.
"""
