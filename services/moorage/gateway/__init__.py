"""The gateway: `/v1` and `/v2` over HTTP for people, scripts and the command line. It owns access tokens and nothing else:
all it shows is mirrored, all it takes is passed on."""
