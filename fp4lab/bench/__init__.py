"""How fast the operators are on this machine, held against a copy, a matmul and other packages.

`operators`, `products`, `limits` and `peer_rows` say what is timed and what is aimed at, `measure`
times it, `results` holds what came out, `table`, `roofline` and a JSON file show it. A row is data:
its name, how its operands are made, what its time is divided by, and the target. Nothing here
asserts a time.
"""
