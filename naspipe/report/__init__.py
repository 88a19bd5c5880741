"""A page and a trace that show runs, made from their run directories alone."""
