"""The machine: its devices, and operations that take the fastest path that the device has.

Code outside this room never asks for the device; a test checks that. Other rooms import

- `device`: the choice of the device, and forced paths for tests and counts;
- `operations`: softmax, attention, the loss and GELU;
- `layers`: norms, tables of tokens, and linear layers that read one token;
- `graphs`: functions as graphs of operations; `streams`: work shared among cores, compiled steps;
- `blas`: a fast BLAS on Linux; `facts`: versions, chip, memory, what a loss depends on;
- `folders`: the user's folders for caches and states;
- `advice`: what to do about MLX's failures.
"""
