"""The intent store: the one writer of documents, groups, their revisions and states, and of the controllers' registry."""
