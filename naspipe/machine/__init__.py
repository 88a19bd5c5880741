"""What this machine has: devices, their memory, determinism, and forked processes."""
