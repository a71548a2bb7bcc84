"""`python -m topokv.bench.worker`, as the parent starts it."""

from topokv.bench.worker import main

main()
