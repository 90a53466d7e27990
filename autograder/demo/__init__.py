"""What the demonstration classes are made of: styles of right answers, and cheats."""
