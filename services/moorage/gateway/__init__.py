"""The gateway serves `/v1` and `/v2` over HTTP to users, scripts and the command line. It owns access tokens only: it answers
reads from mirrors and passes writes on to other workers."""
