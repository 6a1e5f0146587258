"""What fp4lab finds on this machine, whether it works, and how to get what is missing.

`packages`, `hardware` and `operators` look, `findings` holds and shows what they found. The C
library is loaded and tried in a process of its own (`probe`), for a damaged one ends its process.
"""
