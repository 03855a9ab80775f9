"""Text to token ids and back, one token at a time, and the texts that end an answer.

May import `mlxgen.errors` and `mlxgen.json_file`, and nothing else of mlxgen.
"""
