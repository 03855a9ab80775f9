"""The terminal: the command `mlxgen`."""
