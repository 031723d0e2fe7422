"""Is a server's output the target's own? ``dflash2 audit`` asks two servers and compares."""
