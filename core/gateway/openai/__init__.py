"""The OpenAI wire format: bodies in, records out, and back. Pure functions: no server, no engine, no I/O."""
