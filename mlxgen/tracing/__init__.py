"""The record of each step, for the terminal and for a page.

May import generation and all that it builds on; never chat.
"""
