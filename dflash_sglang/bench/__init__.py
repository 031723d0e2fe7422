"""Real servers, real clients, measurements."""
