"""The command line; imports what a command needs when it runs."""
