"""``commonwatt partition``: one file per subcommand."""
