"""The microkernel: hooks, records, registry, config, defaults, and the engine between them. Knows no technique."""

VERSION = "0.1.0"
