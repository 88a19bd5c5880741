"""What this machine has: devices, their memory and clocks, and torch set for equal bits."""
