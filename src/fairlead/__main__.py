"""`python -m fairlead`."""

from fairlead.cli.app import main

main()
