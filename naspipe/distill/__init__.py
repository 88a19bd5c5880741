"""Teachers: streams and taps, momentum, blockwise students, and labels from files or teachers."""
