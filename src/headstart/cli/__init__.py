"""The command line: `main` holds the group and the error contract; every verb is a file of its own."""
