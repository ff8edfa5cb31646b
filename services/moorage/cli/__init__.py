"""The command line, and `up`: everything a person does with a mesh."""
