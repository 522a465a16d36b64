"""The lab: measuring what an engine does, and how far that is from what the machine could."""
