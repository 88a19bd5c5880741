"""MobileNetV2 as a space with one candidate per block."""
