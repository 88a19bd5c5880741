"""MobileNetV2 as a space of one candidate per block."""
