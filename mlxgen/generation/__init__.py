"""Requests, contexts with their caches, sessions, the generation loop, guesses of coming tokens, and batches.

May import the rooms below it (network, sampling, text) and `mlxgen.model`; never scoring, chat or tracing.
"""
