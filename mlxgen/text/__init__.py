"""Text: tokenizers, decoding one token at a time, and stop texts.

May import `mlxgen.errors` and `mlxgen.json_file`, and nothing else of mlxgen.
"""
