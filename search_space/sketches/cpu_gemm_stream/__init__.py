"""Few rows and B [k, n]: B streams by once, C stays in the cache."""
