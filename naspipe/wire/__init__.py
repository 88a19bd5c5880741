"""Messages between processes: sockets, shared memory, tensors and keys."""
