"""MobileNetV3-Small as a space with one candidate per block."""
