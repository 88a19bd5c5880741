"""Plain networks as spaces of one candidate per block."""
