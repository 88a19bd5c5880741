"""MobileNetV3, the small one, as a space of one candidate per block."""
