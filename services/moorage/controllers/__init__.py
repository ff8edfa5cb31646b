"""The built-in controllers; each a worker of its own."""
