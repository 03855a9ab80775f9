"""Tracing: a record of every step of an answer, for the terminal and as an HTML page.

May import generation and all that it builds on; never chat.
"""
