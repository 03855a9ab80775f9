"""Text: tokenizers, decoding one token at a time, and stop texts.

May import the modules on the floor below it that read files and report errors, and nothing else of mlxgen.
"""
