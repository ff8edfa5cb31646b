"""`moorage up`: one synchronous supervisor that starts, watches and stops every process of a local mesh."""
