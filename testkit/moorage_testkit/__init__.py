"""Provides real NATS and Redis servers, faults and builders for tests of Moorage and of your own controllers."""
