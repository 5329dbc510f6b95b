"""What is tried with each library: functions of a server's address, which fail where it fails."""
