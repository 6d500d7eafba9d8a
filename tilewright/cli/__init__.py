"""The command line: thin over the HTTP API, so that a server and the local database answer alike."""
