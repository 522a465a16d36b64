"""The forms in which models write tool calls, read and enforced."""
