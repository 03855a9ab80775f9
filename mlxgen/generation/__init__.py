"""Requests, the context and the cache that matches it, the loop that answers a request, and batches of them.

May import the rooms below it (network, sampling, text) and `mlxgen.model`; never scoring, chat or tracing.
"""
