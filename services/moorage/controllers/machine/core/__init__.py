"""Answers for slots of machines, and labels guests. Pure."""
