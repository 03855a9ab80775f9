"""Chat: conversations on a session, and the templates that write their turns as one text.

May import generation and all that it builds on; never tracing.
"""
