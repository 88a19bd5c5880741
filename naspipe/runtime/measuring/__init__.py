"""What layers and subnets cost: time, bytes and counts, measured or from shapes."""
