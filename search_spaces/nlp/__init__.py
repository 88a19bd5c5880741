"""Translation spaces: an encoder and a decoder of 24 choice blocks each."""
