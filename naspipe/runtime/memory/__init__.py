"""Where layers live: on the device for good, or moved in and out as residency decides."""
