"""Between processes: messages, how tensors travel, sockets and their keys. Knows no layer."""
