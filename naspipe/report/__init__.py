"""One page and one trace that show what runs did, from their run directories alone."""
