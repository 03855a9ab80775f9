"""The subcommands, a module each: options in, calls of mlxgen, results out.

May import every other room of mlxgen.cli.
"""
