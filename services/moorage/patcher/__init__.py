"""The action patcher: turns a decision into what each cluster should run, hands it out, and learns what became of it."""
