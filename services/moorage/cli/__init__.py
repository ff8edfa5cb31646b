"""The command line, and the supervisor behind `moorage up`."""
