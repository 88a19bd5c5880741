"""Streams: the ordered lists of subnets that samplers produce or files contain."""
