"""The terminal's side of a conversation: the input line, the answers, the /commands.

May import the modules of mlxgen.cli itself, and no other room.
"""
