"""One layer on a stage: its module, versions and bytes; the store that makes them."""
