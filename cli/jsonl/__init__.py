"""Files with one request per line: reading them, sharing the work, and output that survives an interruption.

May import the modules of mlxgen.cli itself, and no other room.
"""
