"""`python -m topokv`, the command where no script is installed."""

from topokv.cli import main

raise SystemExit(main())
