"""Files with a request on each line: reading them, dividing the work, and results that survive an interruption.

May import the modules of mlxgen.cli itself, and no other room.
"""
