"""The pure core: functions and classes without I/O, clock or randomness."""
