"""The merger: asks all controllers at once, merges what they answer, chooses, assigns exactly, and commits."""
