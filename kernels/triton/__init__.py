"""Triton kernels. Importing one imports triton, so plugins do so in their hooks."""
