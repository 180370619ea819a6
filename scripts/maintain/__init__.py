"""Scripts for the maintainers of this project, one line each in README.md here."""
