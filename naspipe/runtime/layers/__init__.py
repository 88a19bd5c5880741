"""One layer on a stage: its module, versions, optimizer and bytes; the store that makes them."""
