"""Measuring mlxgen and its peers, each in a process of its own, and drawing the results.

May import the modules of mlxgen.cli itself, and no other room.
"""
