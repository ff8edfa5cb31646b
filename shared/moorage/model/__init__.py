"""Messages and stored objects, one noun per module. Nothing here acts."""
