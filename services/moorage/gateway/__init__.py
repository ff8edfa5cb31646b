"""The gateway: `/v1` over HTTP for people, scripts and the command line. It stores nothing; all it shows is mirrored."""
