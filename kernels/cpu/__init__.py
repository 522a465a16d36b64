"""Native kernels for the CPU: C++ with a plain C ABI, called through ctypes, and nothing of torch but its threads."""
