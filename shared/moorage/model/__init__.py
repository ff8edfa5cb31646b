"""Messages and stored objects, one noun per module. They hold data and do nothing."""
