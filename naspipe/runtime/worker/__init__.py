"""Inside a stage's process: the driver that carries commands out, and what it is made of."""
