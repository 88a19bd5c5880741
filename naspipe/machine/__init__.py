"""Access to the machine: devices, their memory, determinism, and forked processes."""
