"""What the pages for readers say of the code is so."""
