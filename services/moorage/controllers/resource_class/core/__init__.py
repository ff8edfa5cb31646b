"""Pure functions and classes: no I/O, clock or randomness."""
