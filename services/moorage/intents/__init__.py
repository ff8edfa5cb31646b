"""The intent store: the only writer of documents, groups, their revisions and states, and the registry of controllers."""
