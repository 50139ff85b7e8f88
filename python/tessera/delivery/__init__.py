"""The way out: from a scheduler, where requests finish, to the main process, where they are answered."""
