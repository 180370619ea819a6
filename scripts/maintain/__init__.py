"""Scripts for the maintainers of this project. README.md has one line about each."""
