"""Real NATS and Redis on free ports, faults, and builders for tests of Moorage and of controllers of one's own."""
