"""Conversations: templates that write turns as one text, and the turns of a session.

May import generation and all that it builds on; never tracing.
"""
